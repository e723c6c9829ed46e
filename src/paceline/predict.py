"""What does a trained model say of a dataset?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from paceline.data.datasets import AnyDataset, open_dataset
from paceline.data.images.dataset import ImageDataset
from paceline.data.sparse.dataset import Dataset, Split
from paceline.errors import DataError, UsageError
from paceline.files import refuse_existing, translated_disk_errors
from paceline.machine import num_cores
from paceline.models.dense import PART_ROWS, evaluate_classes, scores_by_part
from paceline.models.dense import probabilities as probabilities_of_classes
from paceline.run_folder import Run
from paceline.training.crew import AnyQuality
from paceline.training.dense_files import ImageModel
from paceline.training.evaluate import evaluate, scores_by_block
from paceline.training.model_files import Model, load_model, probabilities

SCHEMA = pa.schema([("row", pa.int64()), ("label", pa.uint8()), ("probability", pa.float32())])
CLASS_SCHEMA = pa.schema(
    [("row", pa.int64()), ("label", pa.uint16()), ("class", pa.uint16()), ("probability", pa.float32())]
)
WRITERS = {".parquet": pa.parquet.ParquetWriter, ".csv": pa.csv.CSVWriter}


def evaluate_model(run: str | Path, data: str | Path, split: Split | None) -> tuple[int, dict[str, Any]]:
    """How many rows there are, and the model's loss, error and AUC on them."""
    model, dataset = load_model(Run(run).path), open_dataset(data)
    chosen = _choose(dataset, split)
    quality: AnyQuality | None
    if isinstance(model, ImageModel):
        images = _images(model, dataset)
        quality = evaluate_classes(model.model, model.values, images, chosen, stop=lambda: False)
    else:
        rows = _rows(dataset)
        quality = evaluate(model.scorer_for(rows), rows, chosen, num_cores(), stop=lambda: False)
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
    model, dataset = load_model(Run(run).path), open_dataset(data)
    chosen = _choose(dataset, split)
    schema = CLASS_SCHEMA if isinstance(model, ImageModel) else SCHEMA
    temporary = out.with_name(f".{out.name}.partial")
    written = 0
    try:
        with translated_disk_errors(out), WRITERS[suffix](str(temporary), schema) as writer:
            for table in _tables(model, dataset, chosen):
                writer.write_table(table)
                written += table.num_rows
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)
    return written


def _tables(model: Model | ImageModel, dataset: AnyDataset, split: Split) -> Iterator[pa.Table]:
    first = 0
    if isinstance(model, ImageModel):
        for images, scores in scores_by_part(model.model, model.values, _images(model, dataset), split, PART_ROWS):
            found = probabilities_of_classes(scores)
            rows, classes = np.arange(first, first + images.num_rows), found.argmax(axis=1).astype(np.uint16)
            yield pa.table([rows, images.labels, classes, found.max(axis=1)], schema=CLASS_SCHEMA)
            first += images.num_rows
        return
    dataset = _rows(dataset)
    for block, scores in scores_by_block(model.scorer_for(dataset), dataset, split, num_cores()):
        rows = np.arange(first, first + block.num_rows)
        yield pa.table([rows, block.labels, probabilities(scores)], schema=SCHEMA)
        first += block.num_rows


def _images(model: ImageModel, dataset: AnyDataset) -> ImageDataset:
    if not isinstance(dataset, ImageDataset):
        raise DataError(f"the model is for images; `{dataset.folder}` has rows of features", "give a dataset of images")
    model.check(dataset)
    return dataset


def _rows(dataset: AnyDataset) -> Dataset:
    if isinstance(dataset, ImageDataset):
        raise DataError(f"the model is for rows of features; `{dataset.folder}` has images", "give a dataset of rows")
    return dataset


def _choose(dataset: AnyDataset, split: Split | None) -> Split:
    chosen: Split = split or ("test" if dataset.split("test").rows else "train")
    if not dataset.split(chosen).rows:
        raise UsageError(f"`{dataset.folder}` has no {chosen} rows", "leave --split out")
    return chosen
