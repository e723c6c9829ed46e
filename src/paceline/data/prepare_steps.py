"""Which steps are the same for rows and images: holding out test rows, filling a dataset, reporting progress?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from paceline.data.blocks.dataset import Split
from paceline.data.blocks.files import R
from paceline.data.blocks.writer import D, DatasetWriter
from paceline.data.prepare_settings import PrepareConfig, PrepareProgress
from paceline.data.sources.files import Source
from paceline.errors import DataError
from paceline.kernels.hashing import draw

PROGRESS_SECONDS = 0.2


class ReadMeter:
    """Counts rows and bytes, and calls `progress` a few times per second."""

    def __init__(self, bytes_total: int | None, progress: Callable[[PrepareProgress], None]) -> None:
        self.rows = 0
        self.bytes_read = 0
        self._bytes_total = bytes_total
        self._progress = progress
        self._reported = time.perf_counter()

    def take(self, rows: int, bytes_read: int) -> None:
        """Count `rows` more rows; `bytes_read` is the total so far."""
        self.rows += rows
        self.bytes_read = bytes_read
        if time.perf_counter() - self._reported > PROGRESS_SECONDS:
            self._report()

    def end(self) -> None:
        """Report that everything was read, including what follows the last row of a compressed file."""
        self.bytes_read = self._bytes_total or self.bytes_read
        self._report()

    def _report(self) -> None:
        self._reported = time.perf_counter()
        self._progress(PrepareProgress(self.rows, self.bytes_read, self._bytes_total))


def hold_out(rows: R, first_row: int, fraction: float, seed: int) -> Iterator[tuple[Split, R]]:
    """Training and test rows: row i of the input is a test row if its pseudo-random number is below the fraction."""
    if fraction == 0:
        yield "train", rows
        return
    drawn = np.empty(rows.num_rows, np.bool_)
    draw(np.uint64(seed), first_row, drawn, np.uint64(int(fraction * 2.0**64)))
    yield "train", rows.select(~drawn)
    yield "test", rows.select(drawn)


def fill(
    writer: DatasetWriter[R, D],
    config: PrepareConfig,
    train: tuple[list[Source], Iterable[R]],
    test: tuple[list[Source], Iterable[R]],
) -> D:
    """Write the rows of the training and of the test files, both with their sources, and open the dataset."""
    rows = 0
    for batch in train[1]:
        for split, part in hold_out(batch, rows, config.test_fraction, config.seed):
            writer.add(split, part)
        rows += batch.num_rows
    _require_rows(rows, train[0])
    rows = 0
    for batch in test[1]:
        writer.add("test", batch)
        rows += batch.num_rows
    _require_rows(rows, test[0])
    return writer.finish()


def _require_rows(num_rows: int, sources: list[Source]) -> None:
    if sources and not num_rows:
        names = ", ".join(f"`{source.name}`" for source in sources[:5])
        raise DataError(f"no rows in {names}", "check the files, and --format")
