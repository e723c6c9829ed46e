"""How is one block stored on disk, and how is it written while the next one fills?"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from io import FileIO
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from paceline.data.blocks.folders import Folder
from paceline.errors import DataError
from paceline.files import translated_disk_errors

BLOCK_ROWS = 65_536
WRITING_THREADS = 2
AGAIN = "prepare the data again"


class BlockInfo(msgspec.Struct, frozen=True):
    """One block as the manifest knows it; `longest` is the largest number of nonzeros in a row."""

    file: str
    rows: int
    nonzeros: int
    longest: int
    checksum: str


class SplitInfo(msgspec.Struct, frozen=True):
    """The blocks of the training rows or of the test rows."""

    rows: int = 0
    positives: int = 0
    nonzeros: int = 0
    blocks: tuple[BlockInfo, ...] = ()


def first_rows(split: SplitInfo, rows: int) -> SplitInfo:
    """The first `rows` rows of a split. Positives and nonzeros are estimated, as if they were spread evenly."""
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
        raise DataError(f"block `{path}` has a wrong checksum: its bytes changed after it was written", AGAIN)
    return pa.ipc.open_file(content).get_batch(0)


def write_table(path: Path, table: pa.RecordBatch) -> str:
    """Write one table as an Arrow file; its checksum."""
    with translated_disk_errors(path), path.open("wb", buffering=0) as file:
        hashed = HashedFile(file)
        with pa.ipc.new_file(pa.PythonFile(hashed, mode="w"), table.schema) as writer:
            writer.write_batch(table)
    return hashed.digest.hexdigest()


class HashedFile:
    """A file that keeps the checksum of everything written to it; pyarrow passes it large arrays uncopied."""

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


class Rows(Protocol):
    """Rows in memory, of any kind."""

    @property
    def num_rows(self) -> int: ...

    def slice(self, start: int, stop: int) -> Self: ...

    def select(self, mask: NDArray[np.bool_]) -> Self: ...


R = TypeVar("R", bound=Rows)


class OpenBlock(Protocol[R]):
    """The rows of a block that is not full yet, in arrays that the next block reuses."""

    @property
    def rows(self) -> R:
        """The rows so far, sharing memory."""

    def take(self, batch: R) -> int:
        """Copy as many of the rows as the block has room for; returns how many."""

    def clear(self) -> None: ...


class BlockWriter(Generic[R]):
    """Writes the rows of one split as blocks. Threads write the files, because allocating pages for them takes time.

    `open_block` makes an empty block, `write` writes a full one.
    """

    def __init__(
        self, folder: Path, split: str, open_block: Callable[[], OpenBlock[R]], write: Callable[[Path, R], BlockInfo]
    ) -> None:
        self._folder = folder
        self._split = split
        self._write_file = write
        self._open = open_block()
        self._free = [open_block() for _ in range(WRITING_THREADS)]
        self._writing: deque[tuple[OpenBlock[R], Future[BlockInfo]]] = deque()
        self._threads = ThreadPoolExecutor(WRITING_THREADS, thread_name_prefix="paceline-write")
        self._blocks: list[BlockInfo] = []

    def append(self, batch: R) -> None:
        """Copy rows into the open block, which is written when full. A disk error may surface some blocks later."""
        while batch.num_rows:
            taken = self._open.take(batch)
            if taken < batch.num_rows:
                self._write()
            batch = batch.slice(taken, batch.num_rows)

    def finish(self) -> SplitInfo:
        """Write the last block and wait for all blocks."""
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
        """End the threads once they have written the blocks they are working on."""
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
