"""How is a block of sparse rows stored on disk, and how do chosen rows of it reach a worker's buffer?

A block is an Arrow IPC file with the columns `label` and `features`, a list of (key, value) per row.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from paceline.data.blocks import files as block_files
from paceline.data.blocks.dataset import Manifest
from paceline.data.blocks.files import AGAIN, BlockInfo, read_table, write_table
from paceline.data.blocks.folders import Folder
from paceline.data.labels import Labels
from paceline.data.sparse.batch import Batch
from paceline.errors import DataError
from paceline.kernels.reading import count_nonzeros, read_rows

BLOCK_BYTES = 64 << 20


class SparseManifest(Manifest, frozen=True):
    """The manifest of a dataset of sparse rows. `hot_keys` are the hottest first."""

    features: int
    hot_keys: list[int]
    hot_counts: list[int]
    labels: Labels = Labels()


def read_block(folder: Folder, info: BlockInfo, manifest: SparseManifest) -> Batch:
    """Map one block file and check it against the manifest: compiled loops trust sizes and keys."""
    table = read_table(folder, info)
    nonzeros = table.column("features")
    rows = Batch(
        table.column("label").to_numpy(),
        nonzeros.offsets.to_numpy(),
        nonzeros.values.field(0).to_numpy(),
        nonzeros.values.field(1).to_numpy(),
    )
    lengths = np.diff(rows.offsets)
    mismatch = f"block `{folder}/{info.file}` does not match the manifest"
    for what, found, said in (
        ("rows", rows.num_rows, info.rows),
        ("nonzeros", rows.num_nonzeros, info.nonzeros),
        ("nonzeros in its longest row", int(lengths.max(initial=0)), info.longest),
        ("labels", rows.labels.dtype, manifest.labels.dtype),
    ):
        if found != said:
            raise DataError(f"{mismatch}: {found} {what} instead of {said}", AGAIN)
    if rows.offsets[0] != 0 or rows.offsets[-1] != rows.num_nonzeros or lengths.min(initial=0) < 0:
        raise DataError(f"{mismatch}: its rows are not one after the other", AGAIN)
    limits = [("key", rows.keys, manifest.features, "features")]
    if manifest.labels.kind == "classes":
        limits.append(("label", rows.labels, manifest.labels.classes, "classes"))
    for what, numbers, limit, of in limits:
        largest = int(numbers.max(initial=0))
        if largest >= limit:
            raise DataError(f"{mismatch}: {what} {largest} is not below its {limit} {of}", AGAIN)
    return rows


def write_block(path: Path, rows: Batch) -> BlockInfo:
    """Write one block file. A crash before its bytes are on disk shows as a wrong checksum later."""
    features = pa.LargeListArray.from_arrays(
        rows.offsets, pa.StructArray.from_arrays([pa.array(rows.keys), pa.array(rows.values)], ["key", "value"])
    )
    table = pa.record_batch([pa.array(rows.labels), features], ["label", "features"])
    checksum = write_table(path, table)
    longest = int(np.diff(rows.offsets).max())
    return BlockInfo(path.name, rows.num_rows, rows.num_nonzeros, longest, checksum)


class OpenRows:
    """The sparse rows of a block that is not full yet, in arrays that the next block reuses."""

    def __init__(self, label_dtype: type) -> None:
        self._label_dtype = label_dtype
        self._rows = Batch.from_lists([], [], [])
        self._num_rows = 0
        self._num_nonzeros = 0

    @property
    def rows(self) -> Batch:
        """The rows so far, sharing memory."""
        rows, nonzeros = self._num_rows, self._num_nonzeros
        labels, offsets, keys, values = self._rows
        return Batch(labels[:rows], offsets[: rows + 1], keys[:nonzeros], values[:nonzeros])

    def take(self, batch: Batch) -> int:
        """Copy as many of the rows as the block has room for; returns how many."""
        most_nonzeros = BLOCK_BYTES // (batch.keys.itemsize + batch.values.itemsize)
        count = min(batch.num_rows, block_files.BLOCK_ROWS - self._num_rows)
        if self._num_nonzeros + batch.offsets[count] > most_nonzeros:
            count = int(np.searchsorted(batch.offsets, most_nonzeros - self._num_nonzeros, side="right")) - 1
            count = max(count, 0 if self._num_rows else 1)
        nonzeros = int(batch.offsets[count])
        start, stop = self._num_rows, self._num_rows + count
        first, last = self._num_nonzeros, self._num_nonzeros + nonzeros
        self._make_room(last, batch.keys.dtype)
        self._rows.labels[start:stop] = batch.labels[:count]
        np.add(batch.offsets[1 : count + 1], first, out=self._rows.offsets[start + 1 : stop + 1])
        self._rows.keys[first:last] = batch.keys[:nonzeros]
        self._rows.values[first:last] = batch.values[:nonzeros]
        self._num_rows, self._num_nonzeros = stop, last
        return count

    def clear(self) -> None:
        self._num_rows = self._num_nonzeros = 0

    def _make_room(self, num_nonzeros: int, key_dtype: np.dtype[Any]) -> None:
        labels, offsets, keys, values = self._rows
        if num_nonzeros <= len(keys) and key_dtype == keys.dtype and len(labels):
            return
        capacity = max(num_nonzeros, 2 * len(keys))
        new_keys, new_values = np.empty(capacity, key_dtype), np.empty(capacity, np.float32)
        new_keys[: self._num_nonzeros] = keys[: self._num_nonzeros]
        new_values[: self._num_nonzeros] = values[: self._num_nonzeros]
        if not len(labels):
            most_rows = block_files.BLOCK_ROWS
            labels, offsets = np.empty(most_rows, self._label_dtype), np.zeros(most_rows + 1, np.int64)
        self._rows = Batch(labels, offsets, new_keys, new_values)


class RowBuffer:
    """Where a reader copies the sparse rows that it was asked for; reused by the next call."""

    def __init__(self, longest_row: int, key_dtype: np.dtype[Any], label_dtype: np.dtype[Any]) -> None:
        self._longest = longest_row
        self._offsets = np.zeros(1, np.int64)
        self._labels: NDArray[Any] = np.zeros(0, label_dtype)
        self._keys: NDArray[Any] = np.zeros(0, key_dtype)
        self._values = np.zeros(0, np.float32)

    def copy(self, found: list[tuple[Batch, NDArray[np.int32]]], num_rows: int) -> Batch:
        """Copy the chosen rows of blocks one after the other."""
        if num_rows > len(self._labels) or num_rows * self._longest > len(self._keys):
            self._make_room(num_rows, sum(count_nonzeros(block.offsets, rows) for block, rows in found))
        filled = 0
        for block, rows in found:
            read_rows(block.offsets, block.keys, block.values, block.labels, rows,
                      self._offsets, self._keys, self._values, self._labels, filled)  # fmt: skip
            filled += len(rows)
        last = int(self._offsets[num_rows])
        return Batch(self._labels[:num_rows], self._offsets[: num_rows + 1], self._keys[:last], self._values[:last])

    def _make_room(self, num_rows: int, num_nonzeros: int) -> None:
        if num_rows > len(self._labels):
            self._labels = np.zeros(num_rows, self._labels.dtype)
            self._offsets = np.zeros(num_rows + 1, np.int64)
        if num_nonzeros > len(self._keys):
            self._keys = np.zeros(num_nonzeros + num_nonzeros // 4, self._keys.dtype)
            self._values = np.zeros(len(self._keys), np.float32)
