"""How is a block of sparse rows stored on disk, and how do chosen rows of it reach a worker's buffer?

A block is an Arrow IPC file with the columns `label`, `weight` if rows have weights, and `features`: a list of (key,
value), or of (key, value, field), per row.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from paceline.data.blocks import files as block_files
from paceline.data.blocks.dataset import Manifest
from paceline.data.blocks.files import BlockInfo, check_below, mismatch, read_table, write_table
from paceline.data.blocks.folders import Folder
from paceline.data.label_statistics import LabelStatistics
from paceline.data.labels import Labels
from paceline.data.sparse.batch import Batch, concatenate
from paceline.data.sparse.names import NamesInfo
from paceline.data.sparse.scaling import Scaling
from paceline.kernels.optional import MOST_FIELDS
from paceline.kernels.reading import count_nonzeros, read_rows

BLOCK_BYTES = 64 << 20


class SparseManifest(Manifest, frozen=True):
    """The manifest of a dataset of sparse rows. `hot_keys` are the hottest first.

    `weighted` says that rows have weights, and `fields` are the names of the fields that nonzeros belong to, if any.
    `scaling` lists, by the input's keys, the values that the blocks do not hold as the source has them. `names` says
    what the features are called. Datasets of older versions have no `label_statistics` and no `names`.
    """

    features: Annotated[int, msgspec.Meta(ge=1, lt=1 << 62)]
    hot_keys: list[int]
    hot_counts: list[int]
    labels: Labels = Labels()
    weighted: bool = False
    fields: tuple[str, ...] = ()
    label_statistics: LabelStatistics | None = None
    scaling: Scaling = Scaling()
    names: NamesInfo = NamesInfo()

    def __post_init__(self) -> None:
        super().__post_init__()
        hot = self.hot_keys
        if hot and not (min(hot) >= 0 and max(hot) < self.features and len(set(hot)) == len(hot)):
            raise ValueError(f"the hot keys are not distinct keys below {self.features}")
        if len(self.hot_counts) != len(hot):
            raise ValueError(f"{len(self.hot_counts)} counts for {len(hot)} hot keys")
        if len(self.fields) > MOST_FIELDS:
            raise ValueError(f"{len(self.fields)} fields; there can be {MOST_FIELDS}")
        if self.label_statistics is not None:
            self.label_statistics.check_for(self.labels)
        if self.scaling.keys and max(self.scaling.keys) >= self.features:
            raise ValueError(f"the scaled keys are not below {self.features}")
        if self.scaling.keys and not len(self.fields) > max(self.scaling.fields, default=-1):
            raise ValueError(f"the scaled keys are not in the {len(self.fields)} fields")


def read_block(folder: Folder, info: BlockInfo, manifest: SparseManifest) -> Batch:
    """Map one block file and check it against the manifest: compiled loops trust sizes and keys."""
    table = read_table(folder, info, _schema(manifest, pa.uint32()), _schema(manifest, pa.uint64()))
    nonzeros = table.column("features")
    rows = Batch(
        table.column("label").to_numpy(),
        nonzeros.offsets.to_numpy(),
        nonzeros.values.field(0).to_numpy(),
        nonzeros.values.field(1).to_numpy(),
        table.column("weight").to_numpy() if manifest.weighted else None,
        nonzeros.values.field(2).to_numpy() if manifest.fields else None,
    )
    lengths = np.diff(rows.offsets)
    for what, found, said in (
        ("nonzeros", rows.num_nonzeros, info.nonzeros),
        ("nonzeros in its longest row", int(lengths.max(initial=0)), info.longest),
    ):
        if found != said:
            raise mismatch(folder, info, f"{found} {what} instead of {said}")
    if rows.offsets[0] != 0 or rows.offsets[-1] != rows.num_nonzeros or lengths.min(initial=0) < 0:
        raise mismatch(folder, info, "its rows are not one after the other")
    check_below(folder, info, "key", rows.keys, manifest.features, "features")
    if manifest.labels.kind != "numbers":
        check_below(folder, info, "label", rows.labels, manifest.labels.classes, "classes")
    elif not np.isfinite([rows.labels.min(), rows.labels.max()]).all():  # NaN shows in both
        raise mismatch(folder, info, "some labels are not finite numbers")
    if rows.weights is not None and not are_weights(rows.weights):
        raise mismatch(folder, info, "some weights are negative or not finite numbers")
    if rows.fields is not None:
        check_below(folder, info, "field", rows.fields, len(manifest.fields), "fields")
    return rows


def are_weights(weights: NDArray[np.float32]) -> bool:
    """Whether all of them can say how much a row counts: finite numbers, none of them negative."""
    return bool(weights.min(initial=0) >= 0 and np.isfinite(weights.max(initial=0)))  # NaN shows in both


def _schema(manifest: SparseManifest, keys: pa.DataType) -> pa.Schema:
    field = [("field", pa.uint16())] if manifest.fields else []
    nonzero = pa.struct([("key", keys), ("value", pa.float32()), *field])
    weight = [("weight", pa.float32())] if manifest.weighted else []
    label = ("label", pa.from_numpy_dtype(manifest.labels.dtype))
    return pa.schema([label, *weight, ("features", pa.large_list(nonzero))])


def fits(rows: Batch, block: list[Batch], most_bytes: int = BLOCK_BYTES) -> int:
    """How many of `rows` still fit into a block that holds other rows; at least one fits into an empty block."""
    room = most_bytes // (rows.keys.itemsize + rows.values.itemsize) - sum(other.num_nonzeros for other in block)
    count = min(rows.num_rows, block_files.BLOCK_ROWS - sum(other.num_rows for other in block))
    if rows.offsets[count] > room:
        count = int(np.searchsorted(rows.offsets, room, side="right")) - 1
    return max(count, 0 if block else 1)


def write_block(path: Path, block: list[Batch]) -> BlockInfo:
    """Write one block file. A crash before its bytes are on disk shows as a wrong checksum later."""
    rows = concatenate(block)
    nonzeros = {"key": rows.keys, "value": rows.values, "field": rows.fields}
    columns = {"label": rows.labels, "weight": rows.weights}
    features = pa.LargeListArray.from_arrays(rows.offsets, pa.StructArray.from_arrays(*_present(nonzeros)))
    arrays, names = _present(columns)
    checksum = write_table(path, pa.record_batch([*arrays, features], [*names, "features"]))
    longest = int(np.diff(rows.offsets).max())
    return BlockInfo(path.name, rows.num_rows, rows.num_nonzeros, longest, checksum)


def _present(arrays: dict[str, NDArray[Any] | None]) -> tuple[list[pa.Array], list[str]]:
    """The arrays that there are, and their names."""
    found = {name: pa.array(array) for name, array in arrays.items() if array is not None}
    return [*found.values()], [*found]


class RowBuffer:
    """Where a reader copies the sparse rows that it was asked for; reused by the next call."""

    def __init__(self, longest_row: int, key_dtype: np.dtype[Any], manifest: SparseManifest) -> None:
        self._longest = longest_row
        self._offsets = np.zeros(1, np.int64)
        self._labels: NDArray[Any] = np.zeros(0, manifest.labels.dtype)
        self._weights = np.zeros(0, np.float32) if manifest.weighted else None
        self._keys: NDArray[Any] = np.zeros(0, key_dtype)
        self._values = np.zeros(0, np.float32)
        self._fields = np.zeros(0, np.uint16) if manifest.fields else None

    def copy(self, found: list[tuple[Batch, NDArray[np.int32]]], num_rows: int) -> Batch:
        """Copy the chosen rows of blocks one after the other."""
        if num_rows > len(self._labels) or num_rows * self._longest > len(self._keys):
            self._make_room(num_rows, sum(count_nonzeros(block.offsets, rows) for block, rows in found))
        filled = 0
        for block, rows in found:
            read_rows(block.offsets, block.keys, block.values, block.labels, block.weights, block.fields, rows,
                      self._offsets, self._keys, self._values, self._labels, self._weights, self._fields,
                      filled)  # fmt: skip
            filled += len(rows)
        last = int(self._offsets[num_rows])
        return Batch(
            self._labels[:num_rows],
            self._offsets[: num_rows + 1],
            self._keys[:last],
            self._values[:last],
            None if self._weights is None else self._weights[:num_rows],
            None if self._fields is None else self._fields[:last],
        )

    def _make_room(self, num_rows: int, num_nonzeros: int) -> None:
        if num_rows > len(self._labels):
            self._labels = np.zeros(num_rows, self._labels.dtype)
            self._offsets = np.zeros(num_rows + 1, np.int64)
            if self._weights is not None:
                self._weights = np.zeros(num_rows, np.float32)
        if num_nonzeros > len(self._keys):
            self._keys = np.zeros(num_nonzeros + num_nonzeros // 4, self._keys.dtype)
            self._values = np.zeros(len(self._keys), np.float32)
            if self._fields is not None:
                self._fields = np.zeros(len(self._keys), np.uint16)
