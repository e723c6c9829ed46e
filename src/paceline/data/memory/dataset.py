"""How does an estimator get at rows in memory? In blocks like those of a dataset in a folder.

Few rows are copied to blocks in memory. Those of a large matrix are written to a temporary dataset: its pages are the
system's to drop, a second copy in memory would not be. Rows go through the same intake: the hottest keys come first,
and values are scaled. So training gives the same bits.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.data.blocks.dataset import Split
from paceline.data.blocks.files import BlockInfo, SplitInfo
from paceline.data.labels import Labels
from paceline.data.limits import Scale
from paceline.data.memory.matrices import DenseRows, SparseRows
from paceline.data.pipeline import parse_in_order
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.blocks import SparseManifest
from paceline.data.sparse.dataset import (
    LIMITS_BESIDE_ROWS,
    NO_SCALING,
    SPARSE_ROWS,
    SparseDataset,
    SparseIntake,
    writer_of,
)
from paceline.data.sparse.key_order import KeyOrder
from paceline.data.sparse.scaling import Scaling
from paceline.errors import DataError
from paceline.kernels.keys import key_dtype
from paceline.machine import num_cores, release_freed

# Of keys and values in blocks. While they are made, nearly as much is in use besides.
MOST_IN_MEMORY = 64 << 20


class MemoryDataset:
    """Training rows in memory, with what a `SparseDataset` offers to those who train."""

    kind = SPARSE_ROWS
    folder = "memory"

    def __init__(self, manifest: SparseManifest, blocks: list[Batch], key_order: KeyOrder) -> None:
        self.manifest = manifest
        self.key_order = key_order
        self.features = manifest.features
        self.labels = manifest.labels
        self.scaling = manifest.scaling
        self._blocks = blocks

    @property
    def key_dtype(self) -> np.dtype[Any]:
        return np.dtype(key_dtype(self.features))

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


TrainingRows: TypeAlias = MemoryDataset | SparseDataset


class LabelledRows(NamedTuple):
    """The rows of a matrix. `targets` are their labels as a dataset stores them; they need not show all classes."""

    rows: SparseRows | DenseRows
    targets: NDArray[Any]
    weights: NDArray[np.float32] | None
    labels: Labels

    @property
    def num_bytes(self) -> int:
        """At most how large their keys and values are in blocks."""
        return self.rows.num_cells * (np.dtype(key_dtype(self.rows.num_columns)).itemsize + 4)

    def intake(self, scale: Scale, scaling: Scaling) -> SparseIntake:
        return SparseIntake(
            self.rows.num_columns, {}, self.labels.kind, (), self.labels.names, scale, scaling=scaling,
            limits=LIMITS_BESIDE_ROWS,
        )  # fmt: skip

    def piece(self, ends: tuple[int, int]) -> Batch:
        """Some rows in memory of their own, with distinct keys."""
        start, stop = ends
        batch = self.rows.between(start, stop)
        if not np.isfinite(batch.values).all():
            raise DataError("the rows have infinity, NaN or a value too large for float32", "replace such values")
        weights = None if self.weights is None else self.weights[start:stop]
        return batch._replace(labels=self.targets[start:stop], weights=weights).distinct()

    def cuts(self) -> Iterator[tuple[int, int]]:
        """The pieces in which `prepare` reads them."""
        return pairwise(self.rows.cuts())


@contextmanager
def dataset_of(given: LabelledRows, *, scale: Scale = "auto", scaling: Scaling = NO_SCALING) -> Iterator[TrainingRows]:
    """Rows as a dataset while the context lasts: in memory if they are few, otherwise in a temporary folder.

    With `scale` none, values are scaled as `scaling` says.
    """
    if given.num_bytes <= MOST_IN_MEMORY:
        yield dataset_in_memory(given, scale=scale, scaling=scaling)
        return
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        with writer_of(Path(folder) / "memory", given.intake(scale, scaling)) as writer:
            for piece in parse_in_order(given.cuts(), given.piece):
                writer.add("train", piece)
            dataset = writer.finish()
        release_freed()
        dataset.manifest = _without_statistics(dataset.manifest)
        yield dataset


def dataset_in_memory(
    given: LabelledRows, *, scale: Scale = "auto", scaling: Scaling = NO_SCALING
) -> MemoryDataset:  # fmt: skip
    """Rows as a dataset, in memory. With `scale` none, values are scaled as `scaling` says."""
    intake = given.intake(scale, scaling)

    def complete(index: int, block: list[Batch]) -> Batch:
        (stored,) = intake.complete("train", index, block)
        block.clear()  # what was copied need not stay in memory
        return stored.read_only()

    cut = list(_cut(_taken(intake, map(given.piece, given.cuts())), intake.limits.kind.fits))
    with ThreadPoolExecutor(min(num_cores(), len(cut)), thread_name_prefix="paceline-blocks") as threads:
        blocks = list(threads.map(complete, range(len(cut)), cut))
    infos = tuple(map(_info_of, blocks))
    train = SplitInfo(sum(info.rows for info in infos), 0, sum(info.nonzeros for info in infos), infos)
    manifest = intake.manifest({"train": train, "validation": SplitInfo(), "test": SplitInfo()})
    return MemoryDataset(_without_statistics(manifest), blocks, intake.key_order)


def _without_statistics(manifest: SparseManifest) -> SparseManifest:
    """Statistics would tell of classes that the rows do not show, which is allowed here."""
    return msgspec.structs.replace(manifest, label_statistics=None)


def _info_of(block: Batch) -> BlockInfo:
    return BlockInfo("", block.num_rows, block.num_nonzeros, int(np.diff(block.offsets).max()), "")


def _taken(intake: SparseIntake, pieces: Iterable[Batch]) -> Iterator[Batch]:
    """The rows of all pieces, once the intake releases them."""
    for piece in pieces:
        for _, rows in intake.take("train", piece):
            yield rows
    for _, rows in intake.rest():
        yield rows


def _cut(batches: Iterable[Batch], fits: Callable[[Batch, list[Batch]], int]) -> Iterator[list[Batch]]:
    """The rows of blocks."""
    block: list[Batch] = []
    for rows in batches:
        while rows.num_rows:
            count = fits(rows, block)
            block.append(rows.slice(0, count))
            if count < rows.num_rows:
                yield block
                block = []
            rows = rows.slice(count, rows.num_rows)
    if block:
        yield block
