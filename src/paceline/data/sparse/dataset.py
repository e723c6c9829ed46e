"""Datasets of sparse rows.

The hottest keys come first: `hot_keys[i]` of the input is key i of the blocks, and the keys that were in front take
the places that became free. Models use the input's keys; `KeyOrder` converts between the two orders.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.data.blocks.dataset import SPLITS, Dataset, RowKind, Split
from paceline.data.blocks.files import BLOCK_ROWS, SplitInfo
from paceline.data.blocks.writer import MOST_THREADS, DatasetWriter
from paceline.data.label_statistics import BlockSums, combine, sum_classes, sum_numbers
from paceline.data.labels import RULES, Labels
from paceline.data.limits import LabelKind, Scale
from paceline.data.sparse.batch import Batch, concatenate
from paceline.data.sparse.blocks import (
    BLOCK_BYTES,
    RowBuffer,
    SparseManifest,
    are_weights,
    fits,
    read_block,
    write_block,
)
from paceline.data.sparse.feature_counts import FeatureCounts, count_features
from paceline.data.sparse.key_order import NO_COUNTS, KeyOrder, most_frequent
from paceline.data.sparse.model_features import ModelFeatures, keep_counts, keep_names
from paceline.data.sparse.name_collector import NameCollector
from paceline.data.sparse.names import FeatureNames, NamesInfo
from paceline.data.sparse.scaling import Scaler, Scaling, choose_scaling
from paceline.errors import DataError, printable
from paceline.kernels.keys import key_dtype

HOT_KEYS = 65_536
SAMPLE_ROWS = 4 * BLOCK_ROWS
SAMPLE_BYTES = 128 << 20
NO_SCALING = Scaling()


def _identity(manifest: SparseManifest) -> str:
    """The number of features, and whatever is not as it was in the first datasets: labels of two classes, no weights
    no fields, and values as in the source.
    """
    labels = manifest.labels
    said = [f"{manifest.features}"]
    said += [] if labels == Labels() else [labels.kind, f"{labels.classes}"]
    said += ["weighted"] * manifest.weighted + [f"{len(manifest.fields)} fields"] * bool(manifest.fields)
    said += [f"{manifest.scaling}"] * bool(manifest.scaling.keys)
    return " ".join(said)


def _describe(manifest: SparseManifest) -> str:
    kinds = {"two-classes": "", "classes": f", {manifest.labels.classes:,} classes", "numbers": ", numbers as labels"}
    fields = f", {len(manifest.fields):,} fields" if manifest.fields else ""
    weights = ", with weights" if manifest.weighted else ""
    return f"{manifest.features:,} features{fields}{kinds[manifest.labels.kind]}{weights}"


SPARSE_ROWS = RowKind(
    name="rows",
    made_by="`paceline prepare` makes rows from Criteo, LIBSVM, Parquet and similar files",
    manifest=SparseManifest,
    identity=_identity,
    describe=_describe,
    read=read_block,
    fits=fits,
    write=write_block,
    buffer=lambda dataset: RowBuffer(dataset.longest_row, dataset.key_dtype, dataset.manifest),
)


class WriterLimits(NamedTuple):
    """How much memory writing rows takes: `sample_bytes` of rows are held back, and up to `threads` threads write
    blocks of `block_bytes`, or of one row that is larger.
    """

    sample_bytes: int = SAMPLE_BYTES
    block_bytes: int = BLOCK_BYTES
    threads: int = MOST_THREADS

    @property
    def kind(self) -> RowKind[Batch]:
        """Rows in such blocks."""
        return dataclasses.replace(SPARSE_ROWS, fits=partial(fits, most_bytes=self.block_bytes))


LIMITS_FOR_FILES = WriterLimits()
# Rows that are in memory already leave less room (docs/promises.md).
LIMITS_BESIDE_ROWS = WriterLimits(96 << 20, 24 << 20, 3)


class SparseDataset(Dataset[Batch]):
    """A dataset of sparse rows. Blocks have their own key order, `key_order`."""

    manifest: SparseManifest

    def __init__(self, path: Path | str) -> None:
        super().__init__(path, SPARSE_ROWS)
        self.scaling = self.manifest.scaling
        self._added = 0

    @property
    def key_dtype(self) -> np.dtype[Any]:
        return np.dtype(key_dtype(self.features))

    @cached_property
    def names(self) -> FeatureNames:
        """What the input's keys are called."""
        return FeatureNames(self.folder, self.manifest.names, self.manifest.source)

    @cached_property
    def key_order(self) -> KeyOrder:
        return KeyOrder(np.array(self.manifest.hot_keys, np.uint64))

    def rescale(self, scaling: Scaling) -> None:
        """From now on, read rows with the values that this scaling gives them, instead of those in the blocks."""
        self.scaling = scaling
        stored, wanted = Scaler(self.manifest.scaling, self.key_order), Scaler(scaling, self.key_order)
        same = scaling == self.manifest.scaling
        self._added = 0 if same else sum(centre != 0 for centre in scaling.centres)
        self.convert(None if same else lambda rows: wanted.apply(stored.undo(rows)))

    def use_source_values(self) -> None:
        self.rescale(Scaling())

    @property
    def model_info(self) -> dict[str, Any]:
        return super().model_info | ({"scaling": msgspec.to_builtins(self.scaling)} if self.scaling.keys else {})

    def keep_features(self, folder: Path, before: ModelFeatures | None) -> dict[str, Any]:
        found: dict[str, Any] = {}
        # Without these files, features are called by their keys, and nobody knows how often they occur.
        with suppress(OSError):
            found["names"] = keep_names(folder, self.folder, self.manifest.names, before)
        with suppress(OSError):
            found["counts"] = keep_counts(folder, self._feature_counts, before)
        return {name: msgspec.to_builtins(info) for name, info in found.items()}

    @cached_property
    def _feature_counts(self) -> FeatureCounts:
        return count_features(self)

    @property
    def longest_row(self) -> int:
        """The largest number of nonzeros that a training row can have."""
        return self._longest_stored + self._added

    @cached_property
    def _longest_stored(self) -> int:
        return max(block.longest for block in self.manifest.train.blocks)


def sparse_writer(
    out: Path | str, *, features: int | None, source: dict[str, Any], labels: LabelKind = "two-classes",
    fields: tuple[str, ...] | None = (), class_names: Sequence[str] = (), scale: Scale = "none",
    numeric: tuple[str, ...] = (), names: NameCollector | None = None, limits: WriterLimits = LIMITS_FOR_FILES,
) -> DatasetWriter[Batch, SparseDataset]:  # fmt: skip
    """A writer of sparse rows; without `features`, the largest key decides. It renumbers the keys of rows in place.

    `fields` are the names of the fields of nonzeros, if they have any. If it is None, their names are numbers from 0 to
    the largest that is found. `class_names` are those of classes by number, and may grow while rows are added; without
    them, classes are called by their numbers. With `scale` auto, values far from 1 are scaled. `numeric` are the names
    of the first keys, and `names` has those of hashed keys when all rows were added.
    """
    intake = SparseIntake(features, source, labels, fields, class_names, scale, numeric, names, limits=limits)
    return writer_of(out, intake)


def writer_of(out: Path | str, intake: SparseIntake) -> DatasetWriter[Batch, SparseDataset]:
    """A writer of the rows that an intake releases."""
    return DatasetWriter(out, intake.limits.kind, intake, SparseDataset, intake.limits.threads)


class SparseIntake:
    """Checks keys, holds back the first rows until their hottest keys are known, scales values and renumbers keys."""

    def __init__(
        self, features: int | None, source: dict[str, Any], labels: LabelKind, fields: tuple[str, ...] | None,
        class_names: Sequence[str], scale: Scale, numeric: tuple[str, ...] = (), names: NameCollector | None = None,
        scaling: Scaling = NO_SCALING, limits: WriterLimits = LIMITS_FOR_FILES,
    ) -> None:  # fmt: skip
        """With `scale` none, values are scaled as `scaling` says."""
        self.limits = limits
        self._declared = features
        self._numeric = numeric
        self._names = names
        self._named = NamesInfo(numeric=numeric)
        self._source = source
        self._fields = fields
        self._labels = labels
        self._scale = scale
        self._scaling = scaling
        self._scaler = Scaler(scaling)
        self._label_dtype = RULES[labels].dtype
        self._class_names = class_names
        self._order: KeyOrder | None = None
        self._counts: dict[Split, NDArray[np.int64]] = dict.fromkeys(SPLITS, NO_COUNTS)
        self._sample: dict[Split, list[Batch]] = {split: [] for split in SPLITS}
        self._label_sums: dict[Split, dict[int, BlockSums]] = {split: {} for split in SPLITS}
        self._weighted: bool | None = None
        self._largest_key = 0
        self._largest_field = 0
        self._counting = threading.Lock()

    @property
    def key_order(self) -> KeyOrder:
        """How keys are renumbered, once rows were released."""
        assert self._order is not None
        return self._order

    def take(self, split: Split, rows: Batch) -> Iterator[tuple[Split, Batch]]:
        """The rows, once there are enough to choose the hottest keys. Keys must be distinct per row."""
        if rows.labels.dtype != self._label_dtype:
            raise DataError(
                f"labels are {rows.labels.dtype}; `{self._labels}` are stored as {np.dtype(self._label_dtype)}",
                "convert the labels, or choose another kind of labels",
            )
        if (rows.fields is not None) != (self._fields != ()):
            raise DataError("either all rows have fields, or none has", "declare the fields")
        if rows.fields is not None:
            self._largest_field = max(self._largest_field, int(rows.fields.max(initial=0)))
        weighted = rows.weights is not None
        if self._weighted not in (None, weighted):
            raise DataError("either all rows have weights, or none has", "give all rows a weight")
        self._weighted = weighted
        if rows.weights is not None and not are_weights(rows.weights):
            raise DataError("some weights are negative or not finite numbers", "leave those rows out")
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
        num_bytes = sum(batch.num_bytes for batches in self._sample.values() for batch in batches)
        if train_rows >= SAMPLE_ROWS or num_bytes >= self.limits.sample_bytes:
            yield from self.rest()

    def rest(self) -> Iterator[tuple[Split, Batch]]:
        """Rank keys by how often they occur in the training rows held back, and release all rows that were."""
        if self._order is not None:
            return
        keys, counts = most_frequent([batch.keys for batch in self._sample["train"]], HOT_KEYS)
        self._order = KeyOrder(keys[np.lexsort((keys, -counts))].astype(np.uint64))
        self._counts["train"] = np.zeros(len(keys), np.int64)
        if self._scale == "auto":
            self._scaling = choose_scaling(self._order, self._sample["train"])
            self._scaler = Scaler(self._scaling)
        for split in SPLITS:
            while self._sample[split]:
                yield split, self._sample[split].pop(0)

    def complete(self, split: Split, index: int, block: list[Batch]) -> list[Batch]:
        """One batch of all rows with the blocks' keys, counted. Runs in several threads at once."""
        rows = self._scaler.apply(concatenate(block))
        counts = np.zeros_like(self._counts[split])
        self.key_order.renumber(rows.keys, counts)
        is_number = self._labels == "numbers"
        sums = sum_numbers(rows.labels, rows.weights, index) if is_number else sum_classes(rows.labels, rows.weights)
        with self._counting:
            self._counts[split] += counts
            self._label_sums[split][index] = sums
        return [rows]

    def write_beside(self, folder: Path) -> None:
        if self._names is not None:
            self._named = self._names.write(folder, self._numeric)

    def manifest(self, splits: dict[Split, SplitInfo]) -> SparseManifest:
        sums = {split: [found[index] for index in sorted(found)] for split, found in self._label_sums.items()}
        features = self._declared if self._declared is not None else self._largest_key + 1
        counted = {split: self._with_sums(info, sums[split]) for split, info in splits.items()}
        if self._weighted and not counted["train"].weights:
            raise DataError("all training rows have the weight 0", "a row counts as much as its weight")
        labels = self._described_labels(sums)
        return SparseManifest(
            features=max(1, features),
            hot_keys=self.key_order.hot.tolist(),
            hot_counts=self._counts["train"].tolist(),
            source={**self._source, **({"class_names": labels.names} if self._class_names else {})},
            labels=labels,
            weighted=bool(self._weighted),
            fields=tuple(map(str, range(self._largest_field + 1))) if self._fields is None else self._fields,
            label_statistics=combine(sums["train"], labels),
            scaling=self._scaling,
            names=self._named,
            train=counted["train"],
            validation=counted["validation"],
            test=counted["test"],
        )

    def _with_sums(self, info: SplitInfo, sums: list[BlockSums]) -> SplitInfo:
        """The split with its number of positive rows, if there are two classes, and its weights, if rows have any."""
        is_two = self._labels == "two-classes"
        positives = sum(int(block.rows[1]) for block in sums if len(block.rows) > 1) if is_two else 0
        weights = math.fsum(block.weight for block in sums) if self._weighted else 0.0
        return msgspec.structs.replace(info, positives=positives, weights=weights)

    def _described_labels(self, sums: dict[Split, list[BlockSums]]) -> Labels:
        names = tuple(self._class_names)
        if self._labels == "two-classes" and len(names) == 1:
            raise DataError(f"all labels are `{printable(names[0])}`", "rows of two classes are needed; check --label")
        classes = max((len(block.rows) for found in sums.values() for block in found), default=0)
        return Labels(self._labels, names) if names else Labels.of(self._labels, classes)
