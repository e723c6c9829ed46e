"""How does one block lie on disk, and how is it written while the next one fills?"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from io import FileIO
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from paceline.data.blocks.folders import Folder
from paceline.data.sparse.batch import Batch
from paceline.errors import DataError
from paceline.files import translated_disk_errors

BLOCK_ROWS = 65_536
BLOCK_BYTES = 64 << 20
WRITING_THREADS = 2
AGAIN = "prepare the data again"


class BlockInfo(msgspec.Struct, frozen=True):
    """One block as the manifest knows it; `longest` is the most nonzeros of a row."""

    file: str
    rows: int
    nonzeros: int
    longest: int
    checksum: str


class SplitInfo(msgspec.Struct, frozen=True):
    """The blocks of the training or of the test rows."""

    rows: int = 0
    positives: int = 0
    nonzeros: int = 0
    blocks: tuple[BlockInfo, ...] = ()


def first_rows(split: SplitInfo, rows: int) -> SplitInfo:
    """The first so many rows of a split; what is counted besides rows is taken to be spread evenly."""
    blocks, left = [], rows
    for block in split.blocks:
        if left > 0:
            blocks.append(msgspec.structs.replace(block, rows=min(left, block.rows)))
            left -= block.rows
    share = rows / max(1, split.rows)
    return SplitInfo(rows, round(split.positives * share), round(split.nonzeros * share), tuple(blocks))


def read_table(folder: Folder, info: BlockInfo) -> pa.RecordBatch:
    """Map one block file and verify its checksum."""
    path = f"{folder}/{info.file}"
    try:
        content = folder.read(info.file)
    except OSError as error:
        raise DataError(f"block `{path}` cannot be opened: {error}", AGAIN) from None
    if xxhash.xxh3_64_hexdigest(content) != info.checksum:
        raise DataError(f"block `{path}` has a wrong checksum: its bytes are not those that were written", AGAIN)
    return pa.ipc.open_file(content).get_batch(0)


def read_block(folder: Folder, info: BlockInfo, features: int) -> Batch:
    """Map one block file and check it against the manifest: compiled loops trust sizes and keys."""
    path, table = f"{folder}/{info.file}", read_table(folder, info)
    nonzeros = table.column("features")
    rows = Batch(
        table.column("label").to_numpy(),
        nonzeros.offsets.to_numpy(),
        nonzeros.values.field(0).to_numpy(),
        nonzeros.values.field(1).to_numpy(),
    )
    longest = int(np.diff(rows.offsets).max(initial=0))
    largest = int(rows.keys.max(initial=0))
    for what, found, said in (
        ("rows", rows.num_rows, info.rows),
        ("nonzeros", rows.num_nonzeros, info.nonzeros),
        ("nonzeros in its longest row", longest, info.longest),
    ):
        if found != said:
            raise DataError(f"block `{path}` does not match the manifest: {found} {what} instead of {said}", AGAIN)
    if largest >= features:
        raise DataError(
            f"block `{path}` does not match the manifest: key {largest} is not below its {features} features", AGAIN
        )
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


def write_table(path: Path, table: pa.RecordBatch) -> str:
    """Write one table as an Arrow file; its checksum."""
    with translated_disk_errors(path), path.open("wb", buffering=0) as file:
        hashed = HashedFile(file)
        with pa.ipc.new_file(pa.PythonFile(hashed, mode="w"), table.schema) as writer:
            writer.write_batch(table)
    return hashed.digest.hexdigest()


class HashedFile:
    """A file to write to that keeps the checksum of what was written; pyarrow hands it large arrays uncopied."""

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self.digest = xxhash.xxh3_64()
        self.closed = False

    def write(self, content: bytes) -> int:
        self.digest.update(content)
        left = memoryview(content)
        while len(left):
            left = left[self._file.write(left) :]
        return memoryview(content).nbytes

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class OpenBlock:
    """The rows of a block that is not full yet, in arrays that are used again for the next one."""

    def __init__(self) -> None:
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
        """Copy as many of the rows as the block has room for; how many that were."""
        most_nonzeros = BLOCK_BYTES // (batch.keys.itemsize + batch.values.itemsize)
        count = min(batch.num_rows, BLOCK_ROWS - self._num_rows)
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
            labels, offsets = np.empty(BLOCK_ROWS, np.uint8), np.zeros(BLOCK_ROWS + 1, np.int64)
        self._rows = Batch(labels, offsets, new_keys, new_values)


class Rows(Protocol):
    """Rows of either kind: what a writer of blocks needs to know of them."""

    @property
    def num_rows(self) -> int: ...

    def slice(self, start: int, stop: int) -> Self: ...


R = TypeVar("R", bound=Rows)


class OpenRows(Protocol[R]):
    """A block that fills: `OpenBlock`, or its like for other rows."""

    @property
    def rows(self) -> R: ...

    def take(self, batch: R) -> int: ...

    def clear(self) -> None: ...


class BlockWriter(Generic[R]):
    """Writes the rows of one split as blocks. Threads write the files: finding memory for them takes time.

    `open_block` makes an empty block of the kind, `write` writes one that is full.
    """

    def __init__(
        self, folder: Path, split: str, open_block: Callable[[], OpenRows[R]], write: Callable[[Path, R], BlockInfo]
    ) -> None:
        self._folder = folder
        self._split = split
        self._write_file = write
        self._open = open_block()
        self._free = [open_block() for _ in range(WRITING_THREADS)]
        self._writing: deque[tuple[OpenRows[R], Future[BlockInfo]]] = deque()
        self._threads = ThreadPoolExecutor(WRITING_THREADS, thread_name_prefix="paceline-write")
        self._blocks: list[BlockInfo] = []

    def append(self, batch: R) -> None:
        """Copy rows into the open block, which is written when it is full. Errors of the disk come blocks late."""
        while batch.num_rows:
            taken = self._open.take(batch)
            if taken < batch.num_rows:
                self._write()
            batch = batch.slice(taken, batch.num_rows)

    def finish(self) -> SplitInfo:
        """Write the last block and wait for all."""
        if self._open.rows.num_rows:
            self._write()
        while self._writing:
            self._wait_for_oldest()
        return SplitInfo(
            rows=sum(block.rows for block in self._blocks),
            nonzeros=sum(block.nonzeros for block in self._blocks),
            blocks=tuple(self._blocks),
        )

    def close(self) -> None:
        """End the threads, once they are through with the blocks at hand."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _write(self) -> None:
        path = self._folder / f"{self._split}-{len(self._blocks) + len(self._writing):05d}.arrow"
        self._writing.append((self._open, self._threads.submit(self._write_file, path, self._open.rows)))
        if not self._free:
            self._wait_for_oldest()
        self._open = self._free.pop()

    def _wait_for_oldest(self) -> None:
        block, written = self._writing.popleft()
        self._blocks.append(written.result())
        block.clear()
        self._free.append(block)
