"""How do rows lie on disk?

A dataset is a folder: `manifest.json` and blocks, Arrow IPC files of some 65,536 rows that are memory-mapped and
read without copying. A dataset is written under a temporary name and renamed when it is whole, so a folder with a
manifest is always complete. Each block's checksum is verified when the block is first read.

The hottest keys come first: `hot_keys[i]` of the input is key i of the blocks, and the keys that stood in front take
the places that became free. Models speak in the input's keys; `KeyOrder` carries values from one order to the other.
"""

from __future__ import annotations

import threading
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, get_args

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from paceline.data.blocks.files import BLOCK_ROWS as BLOCK_ROWS
from paceline.data.blocks.files import BlockWriter, OpenBlock, SplitInfo, first_rows, read_block, write_block
from paceline.data.blocks.folders import open_folder
from paceline.data.blocks.manifests import ROWS, put_in_place, read_manifest
from paceline.data.blocks.partial import PartialFolder
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.key_order import NO_COUNTS, KeyOrder, most_frequent
from paceline.errors import DataError
from paceline.files import refuse_existing, translated_disk_errors
from paceline.kernels.keys import key_dtype

Split = Literal["train", "test"]

HOT_KEYS = 65_536
SAMPLE_ROWS = 4 * BLOCK_ROWS
SAMPLE_BYTES = 128 << 20
FORMAT_VERSION = 1


class Manifest(msgspec.Struct, frozen=True):
    """What a dataset folder says of itself. `source` tells how it was made."""

    features: int
    hot_keys: list[int]
    hot_counts: list[int]
    train: SplitInfo
    test: SplitInfo
    source: dict[str, Any]
    version: int = FORMAT_VERSION


class Dataset:
    """A dataset on disk, opened: `rows(split, index)` maps a block into memory and verifies it the first time."""

    def __init__(self, path: Path | str) -> None:
        self.folder = open_folder(path)
        self.manifest = read_manifest(self.folder, ROWS, FORMAT_VERSION, Manifest)
        self._blocks: dict[tuple[Split, int], Batch] = {}
        self._lock = threading.Lock()
        self._train = self.manifest.train

    @property
    def features(self) -> int:
        return self.manifest.features

    @property
    def key_dtype(self) -> np.dtype[Any]:
        return np.dtype(key_dtype(self.features))

    @cached_property
    def fingerprint(self) -> str:
        """Which data this is: equal for datasets of equal features and blocks."""
        digest = xxhash.xxh3_64(f"{self.features}\n".encode())
        for split in get_args(Split):
            digest.update(f"{split}\n".encode())
            for block in self.split(split).blocks:
                digest.update(f"{block.checksum}\n".encode())
        return digest.hexdigest()

    def split(self, split: Split) -> SplitInfo:
        return self._train if split == "train" else self.manifest.test

    def keep_first(self, rows: int) -> None:
        """Let the training rows be the first so many alone."""
        self._train = first_rows(self.manifest.train, rows)

    @cached_property
    def key_order(self) -> KeyOrder:
        return KeyOrder(np.array(self.manifest.hot_keys, np.uint64))

    @cached_property
    def longest_row(self) -> int:
        """The most nonzeros of a training row."""
        return max(block.longest for block in self.manifest.train.blocks)

    def block(self, split: Split, index: int) -> Batch:
        """The rows of one block, mapped, read-only and with the blocks' keys."""
        found = self._blocks.get((split, index))
        if found is None:
            info = self.manifest.train if split == "train" else self.manifest.test
            found = read_block(self.folder, info.blocks[index], self.features)
            with self._lock:
                found = self._blocks.setdefault((split, index), found)
        return found


class DatasetWriter:
    """Writes a dataset, block by block, in bounded memory. Use it as a context: an exception leaves nothing behind,
    and what an earlier writer of the same dataset left when it was killed is removed.

    `add` takes the batch over: its keys are renumbered in place. `finish` renames the folder into place.
    """

    def __init__(self, out: Path | str, *, features: int | None, source: dict[str, Any]) -> None:
        self.out = Path(out)
        self._declared = features
        self._source = source
        refuse_existing(self.out)
        self._partial = PartialFolder(self.out)
        self._order: KeyOrder | None = None
        self._counts: dict[Split, NDArray[np.int64]] = {"train": NO_COUNTS, "test": NO_COUNTS}
        self._sample: dict[Split, list[Batch]] = {"train": [], "test": []}
        self._blocks = {split: BlockWriter(self._partial.path, split, OpenBlock, write_block) for split in self._sample}
        self._positives: dict[Split, int] = {"train": 0, "test": 0}
        self._largest_key = -1

    def __enter__(self) -> DatasetWriter:
        with translated_disk_errors(self.out):
            self._partial.make()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for blocks in self._blocks.values():
            blocks.close()
        self._partial.remove()

    def add(self, split: Split, batch: Batch) -> None:
        """Append rows to a split, in order. Their keys must be distinct within a row."""
        if not batch.num_rows:
            return
        self._check_keys(batch)
        if self._declared is not None:
            # Parsers use the blocks' integers already; nothing is copied then.
            batch = batch._replace(keys=batch.keys.astype(key_dtype(self._declared), copy=False))
        if self._order is not None:
            self._append(split, batch)
            return
        self._sample[split].append(batch)
        train_rows = sum(batch.num_rows for batch in self._sample["train"])
        num_bytes = sum(batch.num_bytes for batches in self._sample.values() for batch in batches)
        if train_rows >= SAMPLE_ROWS or num_bytes >= SAMPLE_BYTES:
            self._choose_hot_keys()

    def finish(self) -> Dataset:
        """Write what is pending and the manifest, and move the folder into place."""
        if self._order is None:
            self._choose_hot_keys()
        assert self._order is not None
        train, test = self._finish("train"), self._finish("test")
        if not train.rows:
            raise DataError("the input holds no training rows", "check the paths, and that --test-fraction leaves some")
        features = self._declared if self._declared is not None else self._largest_key + 1
        manifest = Manifest(
            features=max(1, features),
            hot_keys=self._order.hot.tolist(),
            hot_counts=self._counts["train"].tolist(),
            train=train,
            test=test,
            source=self._source,
        )
        put_in_place(self._partial, manifest)
        return Dataset(self.out)

    def _finish(self, split: Split) -> SplitInfo:
        return msgspec.structs.replace(self._blocks[split].finish(), positives=self._positives[split])

    def _check_keys(self, batch: Batch) -> None:
        if not batch.num_nonzeros:
            return
        largest = int(batch.keys.max())
        self._largest_key = max(self._largest_key, largest)
        if self._declared is not None and largest >= self._declared:
            raise DataError(
                f"key {largest} is above the declared {self._declared} features (keys count from 0)",
                f"declare --features {largest + 1} or more, or leave it out",
            )

    def _choose_hot_keys(self) -> None:
        """Rank keys by how often they stand in the training rows so far: the first quarter of a million, or all."""
        keys, counts = most_frequent([batch.keys for batch in self._sample["train"]], HOT_KEYS)
        self._order = KeyOrder(keys[np.lexsort((keys, -counts))].astype(np.uint64))
        self._counts["train"] = np.zeros(len(keys), np.int64)
        for split, batches in self._sample.items():
            while batches:
                self._append(split, batches.pop(0))

    def _append(self, split: Split, batch: Batch) -> None:
        assert self._order is not None
        self._positives[split] += int(np.count_nonzero(batch.labels))
        self._order.renumber(batch.keys, self._counts[split])
        self._blocks[split].append(batch)
