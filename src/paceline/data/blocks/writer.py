"""How is a dataset written, whatever its rows are?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

import msgspec

from paceline.data.blocks.dataset import SPLITS, RowKind, Split
from paceline.data.blocks.files import BlockInfo, R, SplitInfo
from paceline.data.blocks.manifests import write_manifest
from paceline.data.blocks.partial import PartialFolder
from paceline.errors import DataError, UsageError
from paceline.files import refuse_existing, replace_file, translated_disk_errors
from paceline.machine import num_cores

FEWEST_THREADS, MOST_THREADS = 2, 16  # each has a block in memory, and waits for the disk now and then

D = TypeVar("D", covariant=True)


class Intake(Protocol[R]):
    """What happens to rows of one kind before they go into blocks: checks, and whatever else they need."""

    def take(self, split: Split, rows: R) -> Iterable[tuple[Split, R]]:
        """Take rows that were added; returns those that are ready for the blocks. Raises for rows that are wrong."""

    def rest(self) -> Iterable[tuple[Split, R]]:
        """Rows that were taken and not returned yet."""

    def complete(self, split: Split, index: int, block: list[R]) -> list[R]:
        """The rows of a whole block, number `index` of its split, as they are stored. Runs in several threads
        at once; may change rows in place.
        """

    def write_beside(self, folder: Path) -> None:
        """Write the files that belong beside the blocks, while threads write the last blocks."""

    def manifest(self, splits: dict[Split, SplitInfo]) -> msgspec.Struct:
        """The manifest, when everything else is written."""


class DatasetWriter(Generic[R, D]):
    """Writes a dataset, block by block, in bounded memory. Use it as a context manager: an exception leaves nothing
    behind. What a killed writer of the same dataset left behind is removed.

    `add` takes the rows over and may change them in place. `finish` moves the folder into place and opens it.
    """

    def __init__(
        self, out: Path | str, kind: RowKind[R], intake: Intake[R], reopen: Callable[[Path], D],
        most_threads: int = MOST_THREADS,
    ) -> None:  # fmt: skip
        self.out = Path(out)
        self._intake = intake
        self._reopen = reopen
        refuse_existing(self.out)
        if not self.out.name:
            raise UsageError("a dataset cannot replace the current folder", "name a new folder: --out NAME")
        self._partial = PartialFolder(self.out)
        path = self._partial.path
        self._blocks = {split: BlockWriter(path, split, kind, intake, most_threads) for split in SPLITS}

    def __enter__(self) -> Self:
        with translated_disk_errors(self.out):
            self._partial.make()
        return self

    def __exit__(self, *_: object) -> None:
        for blocks in self._blocks.values():
            blocks.close()
        self._partial.remove()

    def add(self, split: Split, rows: R) -> None:
        """Append rows to a split, in order."""
        if rows.num_rows:
            self._append(self._intake.take(split, rows))

    def finish(self) -> D:
        """Write what is pending and the manifest, and move the folder into place."""
        self._append(self._intake.rest())
        for blocks in self._blocks.values():
            blocks.end()
        self._intake.write_beside(self._partial.path)
        splits = {split: blocks.finish() for split, blocks in self._blocks.items()}
        if not splits["train"].rows:
            raise DataError(
                "the input has no training rows", "check the paths, and that --test-fraction leaves some rows"
            )
        manifest = write_manifest(self._intake.manifest(splits))
        # Nothing waits for the disk, which may take longer than all the rest. If the machine crashes before everything
        # is there, checksums tell.
        replace_file(self._partial.path / "manifest.json", manifest, durable=False)
        refuse_existing(self.out)
        if self.out.is_dir():
            self.out.rmdir()
        self._partial.move_into_place()
        return self._reopen(self.out)

    def _append(self, ready: Iterable[tuple[Split, R]]) -> None:
        for split, rows in ready:
            self._blocks[split].append(rows)


class BlockWriter(Generic[R]):
    """Writes the rows of one split as blocks. The calling thread only says which rows a block has; threads complete
    them, compute the checksum and write the file.
    """

    def __init__(self, folder: Path, split: Split, kind: RowKind[R], intake: Intake[R], most_threads: int) -> None:
        self._folder = folder
        self._split = split
        self._kind = kind
        self._intake = intake
        self._block: list[R] = []
        self._written: list[Future[BlockInfo]] = []
        self._num_threads = max(FEWEST_THREADS, min(most_threads, num_cores()))
        self._threads = ThreadPoolExecutor(self._num_threads, thread_name_prefix="paceline-write")

    def append(self, rows: R) -> None:
        """Add rows to the open block, which is written when full. A disk error may surface some blocks later."""
        while rows.num_rows:
            count = self._kind.fits(rows, self._block)
            self._block.append(rows.slice(0, count))
            if count < rows.num_rows:
                self._write()
            rows = rows.slice(count, rows.num_rows)

    def end(self) -> None:
        """Write the last block."""
        if self._block:
            self._write()

    def finish(self) -> SplitInfo:
        """Wait for all blocks."""
        blocks = tuple(written.result() for written in self._written)
        rows, nonzeros = sum(block.rows for block in blocks), sum(block.nonzeros for block in blocks)
        return SplitInfo(rows=rows, nonzeros=nonzeros, blocks=blocks)

    def close(self) -> None:
        """End the threads once they have written the blocks they are working on."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _write(self) -> None:
        path = self._folder / f"{self._split}-{len(self._written):05d}.arrow"
        self._written.append(self._threads.submit(self._complete, path, len(self._written), self._block))
        self._block = []
        if len(self._written) > self._num_threads:
            self._written[-1 - self._num_threads].result()  # no more blocks in memory than threads write

    def _complete(self, path: Path, index: int, block: list[R]) -> BlockInfo:
        stored = self._intake.complete(self._split, index, block)
        block.clear()  # what was copied need not stay in memory until the file is written
        return self._kind.write(path, stored)
