"""How are rows in memory trained on without writing files? In blocks like those of a dataset in a folder.

Rows go through the same intake: the hottest keys come first, and values are scaled. So training gives the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.data.blocks.dataset import Split
from paceline.data.blocks.files import BlockInfo, SplitInfo
from paceline.data.labels import Labels
from paceline.data.limits import Scale
from paceline.data.memory.matrices import DenseRows, SparseRows
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.blocks import SparseManifest
from paceline.data.sparse.dataset import NO_SCALING, SPARSE_ROWS, SparseIntake
from paceline.data.sparse.key_order import KeyOrder
from paceline.data.sparse.scaling import Scaling
from paceline.errors import DataError
from paceline.kernels.keys import key_dtype
from paceline.machine import num_cores


class MemoryDataset:
    """Training rows in memory, with what a `SparseDataset` offers to those who train."""

    kind = SPARSE_ROWS
    folder = "memory"

    def __init__(self, manifest: SparseManifest, blocks: list[Batch]) -> None:
        self.manifest = manifest
        self.features = manifest.features
        self.labels = manifest.labels
        self.scaling = manifest.scaling
        self._blocks = blocks

    @property
    def key_dtype(self) -> np.dtype[Any]:
        return np.dtype(key_dtype(self.features))

    @cached_property
    def key_order(self) -> KeyOrder:
        return KeyOrder(np.array(self.manifest.hot_keys, np.uint64))

    @cached_property
    def longest_row(self) -> int:
        """The largest number of nonzeros in a training row."""
        return max(block.longest for block in self.manifest.train.blocks)

    def split(self, split: Split) -> SplitInfo:
        return self.manifest.train if split == "train" else SplitInfo()

    def block(self, split: Split, index: int) -> Batch:
        """The rows of one block, read-only."""
        assert split == "train"
        return self._blocks[index]


def dataset_in_memory(
    rows: SparseRows | DenseRows, targets: NDArray[Any], weights: NDArray[np.float32] | None, labels: Labels, *,
    scale: Scale = "auto", scaling: Scaling = NO_SCALING,
) -> MemoryDataset:  # fmt: skip
    """The rows of a matrix as a dataset. `targets` are their labels as a dataset stores them.

    With `scale` none, values are scaled as `scaling` says. The rows need not show all classes.
    """
    intake = SparseIntake(rows.num_columns, {}, labels.kind, (), labels.names, scale, scaling=scaling)

    def complete(index: int, block: list[Batch]) -> Batch:
        (stored,) = intake.complete("train", index, block)
        block.clear()  # what was copied need not stay in memory
        return stored.read_only()

    cut = list(_cut(_taken(intake, _pieces(rows, targets, weights))))
    with ThreadPoolExecutor(min(num_cores(), len(cut)), thread_name_prefix="paceline-blocks") as threads:
        blocks = list(threads.map(complete, range(len(cut)), cut))
    infos = tuple(map(_info_of, blocks))
    train = SplitInfo(sum(info.rows for info in infos), 0, sum(info.nonzeros for info in infos), infos)
    manifest = intake.manifest({"train": train, "validation": SplitInfo(), "test": SplitInfo()})
    return MemoryDataset(msgspec.structs.replace(manifest, label_statistics=None), blocks)


def _info_of(block: Batch) -> BlockInfo:
    return BlockInfo("", block.num_rows, block.num_nonzeros, int(np.diff(block.offsets).max()), "")


def _pieces(
    rows: SparseRows | DenseRows, targets: NDArray[Any], weights: NDArray[np.float32] | None
) -> Iterator[Batch]:
    """The rows in memory of their own, with distinct keys, in the pieces in which `prepare` reads them."""
    for start, stop in zip(cuts := rows.cuts(), cuts[1:], strict=False):
        batch = rows.between(start, stop)
        if not np.isfinite(batch.values).all():
            raise DataError("the rows have infinity, NaN or a value too large for float32", "replace such values")
        own = None if weights is None else weights[start:stop]
        yield batch._replace(labels=targets[start:stop], weights=own).distinct()


def _taken(intake: SparseIntake, pieces: Iterable[Batch]) -> Iterator[Batch]:
    """The rows of all pieces, once the intake releases them."""
    for piece in pieces:
        for _, rows in intake.take("train", piece):
            yield rows
    for _, rows in intake.rest():
        yield rows


def _cut(batches: Iterable[Batch]) -> Iterator[list[Batch]]:
    """The rows of blocks."""
    block: list[Batch] = []
    for rows in batches:
        while rows.num_rows:
            count = SPARSE_ROWS.fits(rows, block)
            block.append(rows.slice(0, count))
            if count < rows.num_rows:
                yield block
                block = []
            rows = rows.slice(count, rows.num_rows)
    if block:
        yield block
