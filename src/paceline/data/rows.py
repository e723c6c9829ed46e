"""Who reads which rows, so that each is read once per epoch?

The rows of an epoch have one seeded order: blocks are shuffled, and within a block runs of 32 rows. Without shuffling,
it is the order of the input. A *position* counts rows over all epochs; `EpochOrder` turns it into a row of a block. Two
ways of handing positions out:

- `ClockRows`: clock t is the next workers × batch rows, and rank r takes the r-th slice (pace sync);
- `QueueRows`: workers draw small pieces, whole batches, from one queue (other paces).

Both stop at a limit or when asked to pause, at a boundary between clocks or pieces, so that everything before
`position` has been read and nothing after it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.reading import fill_runs, slice_of

RUN_ROWS = 32
# The orders of blocks that are kept: more than all threads together read at a time, and a quarter of a megabyte each.
BLOCKS_KEPT = 96
SMALLEST_PIECE_ROWS = 256
NO_LIMIT = 1 << 62


class Piece(NamedTuple):
    """Rows for one worker: positions `start` up to `stop`, of one epoch."""

    start: int
    stop: int


class Clocks(NamedTuple):
    """The rows of `num_clocks` clocks of one epoch: positions `start` up to `stop`. A clock has `clock_rows` of them,
    the last of an epoch may have fewer, and each of `workers` ranks takes a slice of it.
    """

    start: int
    stop: int
    num_clocks: int
    clock_rows: int
    workers: int

    def slice(self, clock: int, rank: int) -> Piece:
        """The rows of a rank in one of these clocks, counted from 0."""
        return Piece(*slice_of(self, clock, rank))

    def rows_of(self, ranks: list[int]) -> int:
        """How many rows these ranks, which follow each other, have in all these clocks."""
        clocks = np.arange(self.num_clocks)
        return int((slice_of(self, clocks, ranks[-1])[1] - slice_of(self, clocks, ranks[0])[0]).sum())


class BlockRows(NamedTuple):
    """A whole block in an epoch: the rows at positions `start` up to `stop`, in reading order."""

    block: int
    start: int
    stop: int
    rows: NDArray[np.int32]


class BlockRuns(NamedTuple):
    """A whole block in an epoch, which ends at position `stop`: its runs of `RUN_ROWS` rows in reading order. Run r
    begins at row `r * RUN_ROWS`; the last run of a block may be shorter.
    """

    block: int
    stop: int
    runs: NDArray[np.int64]


class _Shuffles(NamedTuple):
    """How the blocks and rows of each epoch are shuffled, if they are."""

    block_rows: NDArray[np.int64]
    seed: int
    shuffle: bool

    def blocks(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The blocks of an epoch in order, and the place in the epoch where each ends."""
        blocks = self._permutation(epoch, 0, len(self.block_rows))
        return blocks, np.cumsum(self.block_rows[blocks])

    def runs(self, epoch: int, block: int) -> NDArray[np.int64]:
        """The runs of a block in the order of an epoch: run r has its rows from `r * RUN_ROWS` on."""
        return self._permutation(epoch, 1 + block, -(-int(self.block_rows[block]) // RUN_ROWS))

    def rows(self, epoch: int, block: int) -> NDArray[np.int32]:
        """The rows of a block in the order of an epoch."""
        rows = np.empty(int(self.block_rows[block]), np.int32)
        fill_runs(self.runs(epoch, block), RUN_ROWS, rows)
        rows.flags.writeable = False
        return rows

    def _permutation(self, epoch: int, which: int, count: int) -> NDArray[np.int64]:
        if not self.shuffle:
            return np.arange(count)
        return np.random.default_rng([self.seed, epoch, which]).permutation(count)


class EpochOrder:
    """The order of rows in every epoch, from the run's seed and the blocks' row counts; that of the input if rows are
    not shuffled.

    >>> order = EpochOrder([3, 2], seed=1)
    >>> sorted((block, row) for block, rows in order.between(0, 5) for row in rows.tolist())
    [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    >>> [(block, rows.tolist()) for block, rows in EpochOrder([3, 2], shuffle=False).between(1, 7)]
    [(0, [1, 2]), (1, [0, 1]), (0, [0, 1])]
    """

    def __init__(self, block_rows: list[int], seed: int = 0, shuffle: bool = True) -> None:
        self.num_rows = sum(block_rows)
        # Caches of its own methods would keep it in memory until the next garbage collection.
        shuffles = _Shuffles(np.array(block_rows, np.int64), seed, shuffle)
        self._epoch = lru_cache(2)(shuffles.blocks)
        self._block = lru_cache(BLOCKS_KEPT)(shuffles.rows)
        self._runs = shuffles.runs

    def between(self, start: int, stop: int) -> Iterator[tuple[int, NDArray[np.int32]]]:
        """The rows at positions `start` up to `stop`: blocks, each with its rows, in order. Safe from any thread."""
        while start < stop:
            found = self.block_at(start)
            yield found.block, found.rows[start - found.start : stop - found.start]
            start = found.stop

    def block_at(self, position: int) -> BlockRows:
        """The block with the row at a position, and all its rows in order."""
        epoch, block, stop = self._find(position)
        rows = self._block(epoch, block)
        return BlockRows(block, stop - len(rows), stop, rows)

    def runs_at(self, position: int) -> BlockRuns:
        """The same, with runs instead of rows."""
        epoch, block, stop = self._find(position)
        return BlockRuns(block, stop, self._runs(epoch, block))

    def _find(self, position: int) -> tuple[int, int, int]:
        """The epoch of a position, the block with its row, and the position where that block ends."""
        epoch, place = divmod(position, self.num_rows)
        blocks, ends = self._epoch(epoch)
        number = int(np.searchsorted(ends, place, side="right"))
        return epoch, int(blocks[number]), epoch * self.num_rows + int(ends[number])


class RowFeed(Protocol):
    """What the coordinator knows about whatever hands rows out."""

    @property
    def position(self) -> int:
        """All rows before it have been handed out; while workers are paused, all have been trained on."""

    @property
    def clock(self) -> int:
        """How many clocks the furthest worker has been given."""

    def open(self, until: int) -> None:
        """Hand out rows up to the first boundary at or after position `until`. Only while workers are paused."""

    def pause(self) -> None:
        """Hand out nothing beyond the nearest boundary that all workers can reach. From any thread."""


class ClockRows:
    """Pace sync: rank r of W takes the r-th slice of each clock's W · batch rows.

    The last clock of an epoch is short and split evenly; a rank may get no rows then. Which rows a clock has follows
    from its number, so `clock` is all there is to remember.
    """

    def __init__(self, num_rows: int, workers: int, batch_size: int, *, position: int, last: int, last_clock: int,
                 clock: int) -> None:  # fmt: skip
        self._num_rows = num_rows
        self._workers = workers
        self._clock_rows = workers * batch_size
        self._epoch_clocks = -(-num_rows // self._clock_rows)
        self._last = last
        self._last_clock = last_clock
        self._lock = threading.Lock()
        self.clock = clock
        self._next_clock = [clock] * workers
        self._until = position

    @property
    def position(self) -> int:
        return self._start(self.clock)

    def open(self, until: int) -> None:
        with self._lock:
            self._until = min(until, self._last)

    def pause(self) -> None:
        with self._lock:
            self._until = self.position

    def take(self, ranks: list[int], most: int) -> Clocks | None:
        """The next clocks of `ranks`, at most `most`, of one epoch; None: out of rows until the next `open`."""
        with self._lock:
            first = self._next_clock[ranks[0]]
            stop = self._hand_out(first, most)
            for rank in ranks:
                self._next_clock[rank] = stop
        if stop <= first:
            return None
        return self._clocks(first, stop)

    def take_from(self, rank: int, first: int, most: int) -> NDArray[np.int64] | None:
        """The rows of `rank` in at most `most` clocks from `first` on, whether it had them before or not.

        [clocks, 3] of first position, last + 1, and rows handed out before the clock; None: out of rows for now.
        """
        with self._lock:
            stop = self._hand_out(first, most)
        if stop <= first:
            return None
        clocks, numbers = self._clocks(first, stop), np.arange(stop - first)
        return np.stack([*slice_of(clocks, numbers, rank), clocks.start + numbers * clocks.clock_rows], axis=1)

    def _hand_out(self, first: int, most: int) -> int:
        """Where a lease of clocks from `first` on ends; moves the furthest clock on as far as needed and allowed."""
        epoch = first // self._epoch_clocks
        stop = min(first + most, (epoch + 1) * self._epoch_clocks, self._last_clock)
        allowed = epoch * self._epoch_clocks - (epoch * self._num_rows - self._until) // self._clock_rows
        self.clock = max(self.clock, min(stop, allowed))
        return min(stop, self.clock)

    def _clocks(self, first: int, stop: int) -> Clocks:
        epoch_end = (first // self._epoch_clocks + 1) * self._num_rows
        start = self._start(first)
        end = min(start + (stop - first) * self._clock_rows, epoch_end)
        return Clocks(start, end, stop - first, self._clock_rows, self._workers)

    def _start(self, clock: int) -> int:
        epoch, clock = divmod(clock, self._epoch_clocks)
        return epoch * self._num_rows + clock * self._clock_rows


class QueueRows:
    """Other paces: whole batches from one queue, in pieces that get smaller towards a stop so that none is late."""

    def __init__(self, num_rows: int, workers: int, batch_size: int, *, position: int, last: int, last_clock: int,
                 clock: int) -> None:  # fmt: skip
        self._num_rows = num_rows
        self._workers = workers
        self._batch_size = batch_size
        self._last = last
        self._last_clock = last_clock
        self._lock = threading.Lock()
        self.position = position
        self._clocks = [clock] * workers
        self._until = position

    @property
    def clock(self) -> int:
        return max(self._clocks)

    def open(self, until: int) -> None:
        with self._lock:
            self._until = min(until, self._last)
            self._clocks = [max(self._clocks)] * self._workers

    def pause(self) -> None:
        with self._lock:
            self._until = self.position

    def take(self, rank: int, most: int) -> Piece | None:
        """The next rows of a worker, at most `most` batches; None: out of rows for now."""
        with self._lock:
            clocks_left = self._last_clock - max(self._clocks)
            if self.position >= self._until or clocks_left <= 0:
                return None
            # Towards a last clock pieces get smaller too. Otherwise one worker would take all of its clocks at once.
            batches = min(most, self._piece_batches(), max(1, (self._last_clock - self._clocks[rank]) // 4))
            end_of_epoch = (self.position // self._num_rows + 1) * self._num_rows
            piece = Piece(self.position, min(self.position + batches * self._batch_size, end_of_epoch))
            self.position = piece.stop
            self._clocks[rank] += -(-(piece.stop - piece.start) // self._batch_size)
            return piece

    def _piece_batches(self) -> int:
        """A quarter of a fair share of what is left, but not too little, and no batch that begins after the limit."""
        left = self._until - self.position
        rows = max(SMALLEST_PIECE_ROWS, left // (4 * self._workers))
        return min(max(1, rows // self._batch_size), -(-left // self._batch_size))
