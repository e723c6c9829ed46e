"""What does a trained model say of a dataset?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from paceline.data.blocks import Dataset, Split
from paceline.errors import UsageError
from paceline.files import refuse_existing, translated_disk_errors
from paceline.machine import num_cores
from paceline.run_folder import Run
from paceline.training.evaluate import evaluate, scores_by_block
from paceline.training.model_files import load_model, probabilities

SCHEMA = pa.schema([("row", pa.int64()), ("label", pa.uint8()), ("probability", pa.float32())])
WRITERS = {".parquet": pa.parquet.ParquetWriter, ".csv": pa.csv.CSVWriter}


def evaluate_model(run: str | Path, data: str | Path, split: Split | None) -> tuple[int, dict[str, Any]]:
    """How many rows there are, and the model's loss, error and AUC on them."""
    model, dataset = load_model(Run(run).path), Dataset(data)
    chosen = _choose(dataset, split)
    quality = evaluate(model.scorer_for(dataset), dataset, chosen, num_cores(), stop=lambda: False)
    assert quality is not None
    return dataset.split(chosen).rows, {n: v if np.isfinite(v) else None for n, v in quality._asdict().items()}


def write_predictions(run: str | Path, data: str | Path, out: str | Path, split: Split | None) -> int:
    """Write `row`, `label` and `probability` of every row to a .parquet or .csv file; returns how many."""
    out = Path(out)
    suffix = out.suffix.lower()
    if suffix not in WRITERS:
        raise UsageError(
            f"`{out}` has the suffix `{out.suffix}`; predictions go to .parquet or .csv", "--out scores.csv"
        )
    refuse_existing(out)
    if not out.parent.is_dir():
        raise UsageError(f"the folder `{out.parent}` does not exist", "make it first, or write elsewhere")
    model, dataset = load_model(Run(run).path), Dataset(data)
    chosen = _choose(dataset, split)
    temporary = out.with_name(f".{out.name}.partial")
    written = 0
    try:
        with translated_disk_errors(out), WRITERS[suffix](str(temporary), SCHEMA) as writer:
            for table in _tables(model, dataset, chosen):
                writer.write_table(table)
                written += table.num_rows
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)
    return written


def _tables(model: Any, dataset: Dataset, split: Split) -> Iterator[pa.Table]:
    first = 0
    for block, scores in scores_by_block(model.scorer_for(dataset), dataset, split, num_cores()):
        rows = np.arange(first, first + block.num_rows)
        yield pa.table([rows, block.labels, probabilities(scores)], schema=SCHEMA)
        first += block.num_rows


def _choose(dataset: Dataset, split: Split | None) -> Split:
    chosen: Split = split or ("test" if dataset.split("test").rows else "train")
    if not dataset.split(chosen).rows:
        raise UsageError(f"`{dataset.folder}` has no {chosen} rows", "leave --split out")
    return chosen
