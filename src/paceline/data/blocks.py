"""How do rows lie on disk?

A dataset is a folder: `manifest.json` and blocks, Arrow IPC files of some 65,536 rows that are memory-mapped and
read without copying. A dataset is written under a temporary name and renamed when it is whole, so a folder with a
manifest is always complete. Each block's checksum is verified when the block is first read.

The hottest keys come first: `hot_keys[i]` of the input is key i of the blocks, and the keys that stood in front take
the places that became free. Models speak in the input's keys; `KeyOrder` carries values from one order to the other.
"""

from __future__ import annotations

import shutil
import threading
import uuid
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from paceline.data.batch import Batch, concatenate
from paceline.errors import DataError
from paceline.files import refuse_existing, replace_file, sync_to_disk, translated_disk_errors
from paceline.kernels.keys import fill_dictionary, renumber

Split = Literal["train", "test"]

BLOCK_ROWS = 65_536
BLOCK_BYTES = 64 << 20
HOT_KEYS = 65_536
SAMPLE_ROWS = 4 * BLOCK_ROWS
SAMPLE_BYTES = 128 << 20
FORMAT_VERSION = 1
NO_COUNTS = np.zeros(0, np.int64)


class BlockInfo(msgspec.Struct, frozen=True):
    """One block as the manifest knows it."""

    file: str
    rows: int
    nonzeros: int
    checksum: str


class SplitInfo(msgspec.Struct, frozen=True):
    """The blocks of the training or of the test rows."""

    rows: int = 0
    positives: int = 0
    nonzeros: int = 0
    blocks: tuple[BlockInfo, ...] = ()


class Manifest(msgspec.Struct, frozen=True):
    """What a dataset folder says of itself. `source` tells how it was made."""

    features: int
    hot_keys: list[int]
    hot_counts: list[int]
    train: SplitInfo
    test: SplitInfo
    source: dict[str, Any]
    version: int = FORMAT_VERSION


class KeyOrder:
    """The renumbering that puts the hottest keys first: `hot[i]` becomes i.

    >>> order = KeyOrder(np.array([7, 1], np.uint64))
    >>> keys = np.array([0, 1, 2, 7], np.uint32)
    >>> order.renumber(keys, NO_COUNTS)
    >>> keys.tolist()
    [7, 1, 2, 0]
    >>> order.to_input(np.array([10.0, 11, 12, 13, 14, 15, 16, 17])).tolist()
    [17.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 10.0]
    """

    def __init__(self, hot: NDArray[np.uint64]) -> None:
        num_hot = len(hot)
        behind = np.sort(hot[hot >= num_hot])
        displaced = np.setdiff1d(np.arange(num_hot, dtype=np.uint64), hot, assume_unique=True)
        self.hot = hot
        self._input_keys = np.concatenate([hot, displaced])
        self._block_keys = np.concatenate([np.arange(num_hot, dtype=np.uint64), behind])
        self._front = np.zeros(num_hot, np.uint64)
        in_front = self._input_keys < num_hot
        self._front[self._input_keys[in_front]] = self._block_keys[in_front]
        self._dictionary = np.zeros((max(4, 1 << (4 * num_hot).bit_length()), 2), np.uint64)
        fill_dictionary(self._dictionary, self._input_keys[~in_front], self._block_keys[~in_front])

    def renumber(self, keys: NDArray[Any], counts: NDArray[np.int64]) -> None:
        """Replace the input's keys by the blocks' in place; `counts[i]` grows with each key that becomes i."""
        renumber(keys, self._front, self._dictionary, counts)

    def to_input(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values laid out by the blocks' keys (first axis), permuted in place to the input's; returned."""
        values[self._input_keys] = values[self._block_keys]
        return values

    def to_blocks(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values laid out by the input's keys (first axis), permuted in place to the blocks'; returned."""
        values[self._block_keys] = values[self._input_keys]
        return values


class Dataset:
    """A dataset on disk, opened: `rows(split, index)` maps a block into memory and verifies it the first time."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.manifest = _read_manifest(self.path)
        self._blocks: dict[tuple[Split, int], Batch] = {}
        self._lock = threading.Lock()

    @property
    def features(self) -> int:
        return self.manifest.features

    @property
    def key_dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint32 if self.features <= 1 << 32 else np.uint64)

    def split(self, split: Split) -> SplitInfo:
        return self.manifest.train if split == "train" else self.manifest.test

    @cached_property
    def key_order(self) -> KeyOrder:
        return KeyOrder(np.array(self.manifest.hot_keys, np.uint64))

    def block(self, split: Split, index: int) -> Batch:
        """The rows of one block, mapped, read-only and with the blocks' keys."""
        with self._lock:
            found = self._blocks.get((split, index))
        if found is None:
            found = read_block(self.path, self.split(split).blocks[index])
            with self._lock:
                found = self._blocks.setdefault((split, index), found)
        return found


def _read_manifest(path: Path) -> Manifest:
    if not path.is_dir():
        raise DataError(f"no dataset at `{path}`", "`paceline generate` or `paceline prepare` makes one")
    try:
        text = (path / "manifest.json").read_bytes()
    except FileNotFoundError:
        raise DataError(
            f"`{path}` is no dataset: it has no manifest.json",
            "give the folder that `paceline prepare --out` or `paceline generate --out` made; run it again if it was cut short",
        ) from None
    try:
        manifest = msgspec.json.decode(text, type=Manifest)
    except msgspec.DecodeError as error:
        raise DataError(f"`{path / 'manifest.json'}` does not read: {error}", "prepare the data again") from None
    if manifest.version != FORMAT_VERSION:
        raise DataError(
            f"`{path}` has format version {manifest.version}; this paceline reads {FORMAT_VERSION}",
            "prepare the data again",
        )
    return manifest


def read_block(folder: Path, info: BlockInfo) -> Batch:
    """Map one block file and check it against the manifest."""
    path = folder / info.file
    again = "prepare the data again"
    try:
        source = pa.memory_map(str(path))
    except (FileNotFoundError, OSError) as error:
        raise DataError(f"block `{path}` cannot be opened: {error}", again) from None
    content = source.read_buffer()
    if xxhash.xxh3_64_hexdigest(content) != info.checksum:
        raise DataError(f"block `{path}` has a wrong checksum: its bytes are not those that were written", again)
    table = pa.ipc.open_file(content).get_batch(0)
    features = table.column("features")
    return Batch(
        table.column("label").to_numpy(),
        features.offsets.to_numpy(),
        features.values.field(0).to_numpy(),
        features.values.field(1).to_numpy(),
    )


class DatasetWriter:
    """Writes a dataset, block by block, in bounded memory. Use it as a context: an exception leaves nothing behind.

    `add` takes the batch over: its keys are renumbered in place. `finish` renames the folder into place.
    """

    def __init__(self, out: Path | str, *, features: int | None, source: dict[str, Any]) -> None:
        self.out = Path(out)
        self._declared = features
        self._source = source
        refuse_existing(self.out)
        self._folder = self.out.with_name(f".{self.out.name}.partial-{uuid.uuid4().hex[:8]}")
        self._order: KeyOrder | None = None
        self._counts: dict[Split, NDArray[np.int64]] = {"train": NO_COUNTS, "test": NO_COUNTS}
        self._pending: dict[Split, list[Batch]] = {"train": [], "test": []}
        self._infos: dict[Split, SplitInfo] = {"train": SplitInfo(), "test": SplitInfo()}
        self._largest_key = -1

    def __enter__(self) -> DatasetWriter:
        with translated_disk_errors(self.out):
            self._folder.mkdir(parents=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, split: Split, batch: Batch) -> None:
        """Append rows to a split, in order. Their keys must be distinct within a row."""
        if not batch.num_rows:
            return
        self._check_keys(batch)
        if self._order is not None:
            self._order.renumber(batch.keys, self._counts[split])
        self._pending[split].append(batch)
        if self._order is not None:
            self._write_full_blocks(split)
        elif sum(b.num_rows for b in self._pending["train"]) >= SAMPLE_ROWS or self._pending_bytes() >= SAMPLE_BYTES:
            self._choose_hot_keys()

    def finish(self) -> Dataset:
        """Write what is pending and the manifest, and move the folder into place."""
        if self._order is None:
            self._choose_hot_keys()
        for split in ("train", "test"):
            while self._pending[split]:
                self._write_block(split)
        assert self._order is not None
        if not self._infos["train"].rows:
            raise DataError("the input holds no training rows", "check the paths, and that --test-fraction leaves some")
        features = self._declared if self._declared is not None else self._largest_key + 1
        manifest = Manifest(
            features=max(1, features),
            hot_keys=self._order.hot.tolist(),
            hot_counts=self._counts["train"].tolist(),
            train=self._infos["train"],
            test=self._infos["test"],
            source=self._source,
        )
        replace_file(self._folder / "manifest.json", msgspec.json.encode(manifest))
        refuse_existing(self.out)
        if self.out.is_dir():
            self.out.rmdir()
        self._folder.rename(self.out)
        sync_to_disk(self.out.parent)
        return Dataset(self.out)

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

    def _pending_bytes(self) -> int:
        return sum(batch.num_bytes for batches in self._pending.values() for batch in batches)

    def _choose_hot_keys(self) -> None:
        """Rank keys by how often they stand in the training rows so far: the first quarter of a million, or all."""
        sample = [batch.keys for batch in self._pending["train"]]
        keys, counts = np.unique(np.concatenate(sample) if sample else np.zeros(0, np.uint32), return_counts=True)
        ranked = np.lexsort((keys, -counts))[:HOT_KEYS]
        self._order = KeyOrder(keys[ranked].astype(np.uint64))
        self._counts["train"] = np.zeros(len(ranked), np.int64)
        for split in ("train", "test"):
            for batch in self._pending[split]:
                self._order.renumber(batch.keys, self._counts[split])
            self._write_full_blocks(split)

    def _write_full_blocks(self, split: Split) -> None:
        while (
            sum(batch.num_rows for batch in self._pending[split]) >= BLOCK_ROWS
            or sum(batch.num_bytes for batch in self._pending[split]) >= BLOCK_BYTES
        ):
            self._write_block(split)

    def _write_block(self, split: Split) -> None:
        """Write the next block's rows of a split; what is left over stays pending."""
        rows = concatenate(self._pending[split])
        bytes_a_row = max(1, rows.num_bytes // rows.num_rows)
        num_rows = min(rows.num_rows, BLOCK_ROWS, max(1, BLOCK_BYTES // bytes_a_row))
        self._pending[split] = [rows.slice(num_rows, rows.num_rows)] if num_rows < rows.num_rows else []
        rows = rows.slice(0, num_rows)
        old = self._infos[split]
        name = f"{split}-{len(old.blocks):05d}.arrow"
        info = write_block(self._folder / name, rows)
        self._infos[split] = SplitInfo(
            rows=old.rows + num_rows,
            positives=old.positives + int(rows.labels.sum()),
            nonzeros=old.nonzeros + rows.num_nonzeros,
            blocks=(*old.blocks, info),
        )


def write_block(path: Path, rows: Batch) -> BlockInfo:
    """Write one block file. A crash before its bytes reach the disk shows as a wrong checksum later."""
    features = pa.LargeListArray.from_arrays(
        rows.offsets, pa.StructArray.from_arrays([pa.array(rows.keys), pa.array(rows.values)], ["key", "value"])
    )
    table = pa.record_batch([pa.array(rows.labels), features], ["label", "features"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_batch(table)
    content = sink.getvalue()
    with translated_disk_errors(path), path.open("wb") as file:
        file.write(content)
    return BlockInfo(path.name, rows.num_rows, rows.num_nonzeros, xxhash.xxh3_64_hexdigest(content))
