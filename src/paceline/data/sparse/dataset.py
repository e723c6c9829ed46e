"""Datasets of sparse rows.

The hottest keys come first: `hot_keys[i]` of the input is key i of the blocks, and the keys that were in front take
the places that became free. Models use the input's keys; `KeyOrder` converts between the two orders.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.data.blocks.dataset import SPLITS, Dataset, RowKind, Split
from paceline.data.blocks.files import BLOCK_ROWS, SplitInfo
from paceline.data.blocks.writer import DatasetWriter
from paceline.data.labels import RULES, Labels
from paceline.data.limits import LabelKind
from paceline.data.sparse.batch import Batch, concatenate
from paceline.data.sparse.blocks import RowBuffer, SparseManifest, fits, read_block, write_block
from paceline.data.sparse.key_order import NO_COUNTS, KeyOrder, most_frequent
from paceline.errors import DataError
from paceline.kernels.keys import key_dtype

HOT_KEYS = 65_536
SAMPLE_ROWS = 4 * BLOCK_ROWS
SAMPLE_BYTES = 128 << 20


def _identity(manifest: SparseManifest) -> str:
    """The number of features; what the labels are only if not two classes, which are older than the other kinds."""
    labels = manifest.labels
    return f"{manifest.features}" if labels == Labels() else f"{manifest.features} {labels.kind} {labels.classes}"


def _describe(manifest: SparseManifest) -> str:
    kinds = {"two-classes": "", "classes": f", {manifest.labels.classes:,} classes", "numbers": ", numbers as labels"}
    return f"{manifest.features:,} features{kinds[manifest.labels.kind]}"


SPARSE_ROWS = RowKind(
    name="rows",
    made_by="`paceline prepare` makes rows from Criteo, LIBSVM, Parquet and similar files",
    manifest=SparseManifest,
    identity=_identity,
    describe=_describe,
    read=read_block,
    fits=fits,
    write=write_block,
    buffer=lambda dataset: RowBuffer(dataset.longest_row, dataset.key_dtype, dataset.labels.dtype),
)


class SparseDataset(Dataset[Batch]):
    """A dataset of sparse rows. Blocks have their own key order, `key_order`."""

    manifest: SparseManifest

    def __init__(self, path: Path | str) -> None:
        super().__init__(path, SPARSE_ROWS)

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


def sparse_writer(
    out: Path | str, *, features: int | None, source: dict[str, Any], labels: LabelKind = "two-classes"
) -> DatasetWriter[Batch, SparseDataset]:
    """A writer of sparse rows; without `features`, the largest key decides. It renumbers the keys of rows in place."""
    return DatasetWriter(out, SPARSE_ROWS, SparseIntake(features, source, labels), SparseDataset)


class SparseIntake:
    """Checks keys, holds back the first rows until their hottest keys are known, and renumbers keys."""

    def __init__(self, features: int | None, source: dict[str, Any], labels: LabelKind) -> None:
        self._declared = features
        self._source = source
        self._labels = labels
        self._label_dtype = RULES[labels].dtype
        self._classes = 0
        self._order: KeyOrder | None = None
        self._counts: dict[Split, NDArray[np.int64]] = {"train": NO_COUNTS, "test": NO_COUNTS}
        self._sample: dict[Split, list[Batch]] = {"train": [], "test": []}
        self._positives: dict[Split, int] = {"train": 0, "test": 0}
        self._largest_key = 0
        self._counting = threading.Lock()

    def take(self, split: Split, rows: Batch) -> Iterator[tuple[Split, Batch]]:
        """The rows, once there are enough to choose the hottest keys. Keys must be distinct per row."""
        if rows.labels.dtype != self._label_dtype:
            raise DataError(
                f"labels are {rows.labels.dtype}; `{self._labels}` are stored as {np.dtype(self._label_dtype)}",
                "convert the labels, or choose another kind of labels",
            )
        largest = int(rows.keys.max(initial=0))
        self._largest_key = max(self._largest_key, largest)
        if self._declared is not None:
            if largest >= self._declared:
                raise DataError(
                    f"key {largest} is above the declared {self._declared} features (keys count from 0)",
                    f"declare --features {largest + 1} or more, or leave it out",
                )
            # Parsers already use the integers of the blocks; nothing is copied then.
            rows = rows._replace(keys=rows.keys.astype(key_dtype(self._declared), copy=False))
        if self._order is not None:
            yield split, rows
            return
        self._sample[split].append(rows)
        train_rows = sum(batch.num_rows for batch in self._sample["train"])
        num_bytes = sum(array.nbytes for batches in self._sample.values() for batch in batches for array in batch)
        if train_rows >= SAMPLE_ROWS or num_bytes >= SAMPLE_BYTES:
            yield from self.rest()

    def rest(self) -> Iterator[tuple[Split, Batch]]:
        """Rank keys by how often they occur in the training rows held back, and release all rows that were."""
        if self._order is not None:
            return
        keys, counts = most_frequent([batch.keys for batch in self._sample["train"]], HOT_KEYS)
        self._order = KeyOrder(keys[np.lexsort((keys, -counts))].astype(np.uint64))
        self._counts["train"] = np.zeros(len(keys), np.int64)
        for split in SPLITS:
            while self._sample[split]:
                yield split, self._sample[split].pop(0)

    def complete(self, split: Split, block: list[Batch]) -> list[Batch]:
        """One batch of all rows with the blocks' keys, counted. Runs in several threads at once."""
        assert self._order is not None
        rows = concatenate(block)
        counts = np.zeros_like(self._counts[split])
        self._order.renumber(rows.keys, counts)
        with self._counting:
            self._counts[split] += counts
            if self._labels == "two-classes":
                self._positives[split] += int(np.count_nonzero(rows.labels))
            elif self._labels == "classes":
                self._classes = max(self._classes, 1 + int(rows.labels.max()))
        return [rows]

    def manifest(self, train: SplitInfo, test: SplitInfo) -> SparseManifest:
        assert self._order is not None
        features = self._declared if self._declared is not None else self._largest_key + 1
        return SparseManifest(
            features=max(1, features),
            hot_keys=self._order.hot.tolist(),
            hot_counts=self._counts["train"].tolist(),
            train=msgspec.structs.replace(train, positives=self._positives["train"]),
            test=msgspec.structs.replace(test, positives=self._positives["test"]),
            source=self._source,
            labels=Labels.of(self._labels, self._classes),
        )
