"""How many training rows have each feature? A run keeps that beside its model, so `paceline top` needs no dataset."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from paceline.data.blocks.files import BlockInfo, Count, MissingBlockError, read_table, write_table
from paceline.data.blocks.folders import Folder
from paceline.errors import DataError
from paceline.kernels.names import count_keys
from paceline.machine import num_cores

if TYPE_CHECKING:
    from paceline.data.sparse.dataset import SparseDataset

FILE: Literal["counts.arrow"] = "counts.arrow"
# Counters in all threads, of four bytes. Of more features only hot ones are counted: it costs each run time and memory.
MOST_COUNTED = 1 << 23


class CountsInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What `model.json` says about the counts of features: the file, if that is not empty, and how many keys it lists.

    `rows` is the number of training rows, and `datasets` are the fingerprints of the data. The counts are `complete` if
    no row has a key that is not listed.
    """

    # No other name: it is that of a file in the folder of a run.
    file: Literal["", "counts.arrow"] = ""
    keys: Count = 0
    checksum: str = ""
    rows: Count = 0
    datasets: tuple[str, ...] = ()
    complete: bool = False


class FeatureCounts(NamedTuple):
    """How many of `rows` rows have each of the sorted `keys` of the input. Other fields are those of `CountsInfo`."""

    keys: NDArray[Any]
    counts: NDArray[Any]
    rows: int
    datasets: tuple[str, ...]
    complete: bool

    def of(self, wanted: list[int]) -> dict[int, int]:
        """The counts of these keys, as far as they are known."""
        places = np.searchsorted(self.keys, wanted)
        found: dict[int, int] = {}
        for key, place in zip(wanted, places.tolist(), strict=True):
            if place < len(self.keys) and int(self.keys[place]) == key:
                found[key] = int(self.counts[place])
            elif self.complete:
                found[key] = 0
        return found

    def with_those_of(self, other: FeatureCounts) -> FeatureCounts:
        """The counts in the rows of both; only of keys that are known in both."""
        keys, places = np.unique(np.concatenate([self.keys, other.keys]), return_inverse=True)
        counts = np.bincount(places, np.concatenate([self.counts, other.counts]), len(keys)).astype(np.int64)
        known = np.ones(len(keys), bool)
        for one in (self, other):
            if not one.complete:
                known &= np.isin(keys, one.keys, assume_unique=True)
        return FeatureCounts(
            keys[known], counts[known], self.rows + other.rows, self.datasets + other.datasets,
            self.complete and other.complete,
        )  # fmt: skip


def count_features(dataset: SparseDataset) -> FeatureCounts:
    """Count the features of all training rows. Of very many features, and of data behind a URL, only the hot ones,
    which the manifest has, are known.
    """
    info = dataset.split("train")
    datasets = (dataset.fingerprint,)
    if dataset.features > MOST_COUNTED or not dataset.folder.is_near:
        whole = info.rows == dataset.manifest.train.rows
        keys, counts = np.array(dataset.manifest.hot_keys, np.uint64), np.array(dataset.manifest.hot_counts, np.int64)
        order = np.argsort(keys)[: len(keys) if whole else 0]
        return FeatureCounts(keys[order], counts[order], info.rows, datasets, complete=False)
    num_threads = min(num_cores(), len(info.blocks), max(1, MOST_COUNTED // dataset.features))

    def count(first: int) -> NDArray[np.uint32]:
        counts = np.zeros(dataset.features, np.uint32)
        for number in range(first, len(info.blocks), num_threads):
            rows = dataset.block("train", number)
            count_keys(rows.slice(0, min(rows.num_rows, info.blocks[number].rows)).keys, counts)
        return counts

    with ThreadPoolExecutor(num_threads, thread_name_prefix="paceline-count") as threads:
        first, *others = threads.map(count, range(num_threads))
    for other in others:
        first += other
    dataset.key_order.to_input(first)
    used = np.flatnonzero(first)
    return FeatureCounts(used, first[used], info.rows, datasets, complete=True)


def write_counts(folder: Path, found: FeatureCounts) -> CountsInfo:
    """Write the file of counts to a model's folder, if any are known."""
    if not len(found.keys):
        return CountsInfo()
    schema = _schemas()[int(found.keys[-1]) >= 1 << 32 or found.rows >= 1 << 32]
    columns = [
        pa.array(array.astype(field.type.to_pandas_dtype(), copy=False))
        for array, field in zip((found.keys, found.counts), schema, strict=True)
    ]
    (folder / FILE).unlink(missing_ok=True)
    checksum = write_table(folder / FILE, pa.RecordBatch.from_arrays(columns, schema=schema))
    return CountsInfo(
        file=FILE, keys=len(found.keys), checksum=checksum, rows=found.rows, datasets=found.datasets,
        complete=found.complete,
    )  # fmt: skip


def read_counts(folder: Folder, info: CountsInfo) -> FeatureCounts | None:
    """The counts beside a model; None if there are none, or if the file was removed."""
    if not info.file:
        return None
    try:
        table = read_table(folder, BlockInfo(FILE, info.keys, 0, 0, info.checksum), *_schemas())
    except MissingBlockError:
        return None
    keys, counts = table.column("key").to_numpy(), table.column("rows").to_numpy()
    if (keys[1:] <= keys[:-1]).any():
        raise DataError(f"`{folder}/{FILE}` does not list its keys in order", "train again")
    return FeatureCounts(keys, counts, info.rows, info.datasets, info.complete)


def _schemas() -> tuple[pa.Schema, pa.Schema]:
    return tuple(pa.schema([("key", kind), ("rows", kind)]) for kind in (pa.uint32(), pa.uint64()))
