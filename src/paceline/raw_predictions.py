"""What does a trained model predict for raw rows: of files, of standard input, or in memory? No dataset is written."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from paceline.data.sparse.batch import Batch
from paceline.data.unlabelled_rows import UnlabelledRows
from paceline.errors import DataError, UsageError, printable
from paceline.models.trained import TrainedModel, load_model
from paceline.prediction_files import Written, check_target, write_tables
from paceline.run_folder import RunFolder
from paceline.training.scorers import Scoring, scoring_on

Columns = dict[str, NDArray[Any]]


def write_raw_predictions(
    run: str | Path, sources: Sequence[str], out: str | Path, settings: Mapping[str, Any], code: str = "",
    device: str = "cpu",
) -> Written:  # fmt: skip
    """Score files of raw rows, and write what the model predicts to a .parquet or .csv file, or to standard output.

    `settings` are `format`, `skip_bad_rows` and `id`, the column to write; without one, these are the file and the
    number of the row in it, as messages count rows.
    """
    check_target(out)
    model = load_model(RunFolder(run).path, code)
    scoring = scoring_on(device, model)(model.parameters)
    rows = model.input.files_of(model.trained, [*sources], settings)
    with closing(_tables(model, scoring, rows, settings.get("id", ""))) as tables:  # no thread outlives an error
        written = write_tables(out, tables)
    return Written(written, rows.bad_rows, tuple(filter(None, (*rows.told(), model.meaning))))


def write_predictions_for(
    run: str | Path, rows: Any, out: str | Path, id_column: str = "", code: str = "", device: str = "cpu"
) -> int:
    """Score rows in memory, and write predictions with the numbers of rows, from 0, or a column; returns how many."""
    check_target(out)
    model = load_model(RunFolder(run).path, code)
    scoring = scoring_on(device, model)(model.parameters)
    with closing(_tables_in_memory(model, scoring, rows, id_column)) as tables:
        return write_tables(out, tables)


def _tables(model: TrainedModel, scoring: Scoring, rows: UnlabelledRows, id_column: str) -> Generator[pa.Table]:
    scorer, parameters = scoring

    def score(batch: Batch) -> Columns:
        return model.model.output.predict(scorer.scores(parameters, model.input.parsed(batch)))

    for scored in rows.scored(score, threads=scorer.scoring_threads):
        if id_column:
            yield _with_ids(id_column, scored.ids, scored.made)
        else:
            yield pa.table({"file": pa.repeat(scored.source.name, len(scored.rows)), "row": scored.rows, **scored.made})


def _tables_in_memory(model: TrainedModel, scoring: Scoring, rows: Any, id_column: str) -> Generator[pa.Table]:
    scorer, parameters = scoring

    def score(batch: Any) -> Columns:
        return model.model.output.predict(scorer.scores(parameters, batch))

    first = 0
    for part in model.input.parts_of(model.trained, rows, score, id_column):
        count = len(next(iter(part.made.values())))
        numbers = np.arange(first, first + count)
        first += count
        yield _with_ids(id_column, part.ids, part.made) if id_column else pa.table({"row": numbers, **part.made})


def _with_ids(name: str, ids: Any, columns: Columns) -> pa.Table:
    """Predictions with the column that tells rows apart. Parsers have text as bytes."""
    if name in columns:
        raise UsageError(f"`id` is `{name}`, and so is a column of predictions", "rename it in the input")
    if pa.types.is_dictionary(ids.type):
        ids = ids.dictionary_decode()
    if pa.types.is_large_binary(ids.type) or pa.types.is_binary(ids.type):
        try:
            ids = ids.cast(pa.large_string())
        except pa.ArrowInvalid:
            message = f"column {printable(name)} has text that is not UTF-8"
            raise DataError(message, "choose another column for --id") from None
    return pa.table({name: ids, **columns})
