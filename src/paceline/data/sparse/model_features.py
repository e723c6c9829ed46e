"""What does a run keep about the features of its model: what are they called, and how many rows have them?

A run that starts from another one's model keeps what that run knew, too.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from paceline.data.blocks.folders import Folder, LocalFolder
from paceline.data.sparse.feature_counts import CountsInfo, FeatureCounts, read_counts, write_counts
from paceline.data.sparse.names import FILE, MOST_BYTES, NOTE_BYTES, SCHEMA, NamesInfo, read_names, write_names
from paceline.errors import DataError


class ModelFeatures(NamedTuple):
    """What is known about the features of a model: its folder, and what `model.json` says about the files there."""

    folder: LocalFolder
    names: NamesInfo = NamesInfo()
    counts: CountsInfo = CountsInfo()


def keep_names(to: Path, folder: Folder, info: NamesInfo, before: ModelFeatures | None) -> NamesInfo:
    """Put the names of a dataset into the folder of a model, and those that the model before it had."""
    known = before and _names_of(before.folder, before.names)
    if before is None or known is None:
        return _copy(to, folder, info)
    new = _names_of(folder, info)
    if new is None:
        return _copy(to, before.folder, msgspec.structs.replace(before.names, numeric=info.numeric))
    unknown = ~np.isin(new.column("key").to_numpy(), known.column("key").to_numpy())
    if not unknown.any():
        return _copy(to, before.folder, msgspec.structs.replace(before.names, numeric=info.numeric))
    columns = [*before.names.columns, *(name for name in info.columns if name not in before.names.columns)]
    new = new.filter(pa.array(unknown))
    numbers = np.array([columns.index(name) for name in info.columns], np.uint16)[new.column("column").to_numpy()]
    new = new.set_column(1, "column", pa.array(numbers))
    parts = zip(known.columns, new.columns, strict=True)
    table = pa.RecordBatch.from_arrays([pa.concat_arrays(part) for part in parts], schema=SCHEMA)
    lengths = np.diff(np.frombuffer(table.column("text").buffers()[1], np.int32)[: table.num_rows + 1])
    fit = int(np.searchsorted(np.cumsum(lengths.astype(np.int64) + NOTE_BYTES), MOST_BYTES, "right"))
    complete = before.names.complete and info.complete and fit == table.num_rows
    made = NamesInfo(numeric=info.numeric, columns=tuple(columns), complete=complete)
    return write_names(to, table.slice(0, fit), made)


def keep_counts(to: Path, found: FeatureCounts, before: ModelFeatures | None) -> CountsInfo:
    """Write how many rows have each feature to the folder of a model: rows that it or the model before it was trained
    on. Nothing is known if that is not known of the model before.
    """
    if before is None:
        return write_counts(to, found)
    known = None
    with suppress(DataError):
        known = read_counts(before.folder, before.counts)
    if known is None:
        return CountsInfo()
    seen = set(found.datasets) <= set(known.datasets)
    return write_counts(to, known if seen else known.with_those_of(found))


def _names_of(folder: Folder, info: NamesInfo) -> pa.RecordBatch | None:
    with suppress(DataError):
        return read_names(folder, info)
    return None


def _copy(to: Path, folder: Folder, info: NamesInfo) -> NamesInfo:
    if info.file:
        folder.copy(FILE, to)
    return info
