"""How is a dataset written, whatever its rows are?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

import msgspec

from paceline.data.blocks.dataset import SPLITS, RowKind, Split
from paceline.data.blocks.files import BlockWriter, OpenBlock, R, SplitInfo
from paceline.data.blocks.manifests import put_in_place
from paceline.data.blocks.partial import PartialFolder
from paceline.errors import DataError
from paceline.files import refuse_existing, translated_disk_errors

D = TypeVar("D", covariant=True)


class Intake(Protocol[R]):
    """What happens to rows of one kind before they go into blocks: checks, and whatever else they need."""

    def open_block(self) -> OpenBlock[R]: ...

    def take(self, split: Split, rows: R) -> Iterable[tuple[Split, R]]:
        """Take rows that were added; returns those that are ready for the blocks. Raises for rows that are wrong."""

    def rest(self) -> Iterable[tuple[Split, R]]:
        """Rows that were taken and not returned yet."""

    def manifest(self, train: SplitInfo, test: SplitInfo) -> msgspec.Struct: ...


class DatasetWriter(Generic[R, D]):
    """Writes a dataset, block by block, in bounded memory. Use it as a context manager: an exception leaves nothing
    behind. What a killed writer of the same dataset left behind is removed.

    `add` takes the rows over and may change them in place. `finish` moves the folder into place and opens it.
    """

    def __init__(self, out: Path | str, kind: RowKind[R], intake: Intake[R], reopen: Callable[[Path], D]) -> None:
        self.out = Path(out)
        self._intake = intake
        self._reopen = reopen
        refuse_existing(self.out)
        self._partial = PartialFolder(self.out)
        self._blocks = {
            split: BlockWriter(self._partial.path, split, intake.open_block, kind.write) for split in SPLITS
        }

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
        train, test = (self._blocks[split].finish() for split in SPLITS)
        if not train.rows:
            raise DataError(
                "the input has no training rows", "check the paths, and that --test-fraction leaves some rows"
            )
        put_in_place(self._partial, self._intake.manifest(train, test))
        return self._reopen(self.out)

    def _append(self, ready: Iterable[tuple[Split, R]]) -> None:
        for split, rows in ready:
            self._blocks[split].append(rows)
