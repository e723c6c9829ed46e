"""How are predictions written: to a Parquet or CSV file, or as CSV to standard output?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from paceline.errors import DataError, UsageError
from paceline.files import new_path, refuse_existing

STANDARD_OUTPUT = "-"
WRITERS = {".parquet": pa.parquet.ParquetWriter, ".csv": pa.csv.CSVWriter}


class Written(NamedTuple):
    """How many rows were written, how many bad ones were left out, and what to tell the user."""

    rows: int
    bad_rows: int
    notes: tuple[str, ...]


def check_target(out: str | Path) -> None:
    """Raise unless predictions can be written there."""
    if str(out) == STANDARD_OUTPUT:
        return
    path = Path(out)
    if path.suffix.lower() not in WRITERS:
        raise UsageError(
            f"`{path}` has the suffix `{path.suffix}`; predictions go to .parquet or .csv", "--out scores.csv"
        )
    refuse_existing(path)
    if not path.parent.is_dir():
        raise UsageError(f"the folder `{path.parent}` does not exist", "make it first, or write elsewhere")


def refuse_split(split: str | None) -> None:
    """Raise if there is one: only datasets have splits."""
    if split:
        raise UsageError(f"`split` is {split}, but raw rows are not in splits", "leave it out")


def refuse_raw_settings(settings: Mapping[str, object], why: str) -> None:
    """Raise for settings that only files of raw rows have, unless they have their default."""
    for name, value in settings.items():
        if value not in ("", "auto", 0):
            raise UsageError(f"`{name}` is for files of raw rows, and {why}", "leave it out")


def write_tables(out: str | Path, tables: Iterator[pa.Table]) -> int:
    """Write tables of the same columns one after the other, at least one; returns how many rows they have.

    A file appears when it is complete.
    """
    first = next(tables)
    if str(out) == STANDARD_OUTPUT:
        with _opened(pa.csv.CSVWriter, sys.stdout.buffer, first.schema) as writer:
            return _write(writer, first, tables)
    path = Path(out)
    with (
        new_path(path) as place,
        place.open("xb") as file,
        _opened(WRITERS[path.suffix.lower()], file, first.schema) as writer,
    ):
        return _write(writer, first, tables)


def _opened(writer: Callable[..., Any], file: Any, schema: pa.Schema) -> Any:
    """A writer of tables; raises for columns that the kind of file cannot hold, such as lists in CSV."""
    try:
        return writer(file, schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        names = ", ".join(schema.names)
        hint = "choose another column for --id, or write Parquet"
        raise DataError(f"cannot write the columns {names}: {error}", hint) from None


def _write(writer: pa.csv.CSVWriter | pa.parquet.ParquetWriter, first: pa.Table, tables: Iterator[pa.Table]) -> int:
    written = 0
    for table in chain([first], tables):
        if table.num_rows:
            writer.write_table(table)
            written += table.num_rows
    return written
