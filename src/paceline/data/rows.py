"""Who reads which rows, so that each is read once per epoch?

The rows of an epoch have one seeded order: blocks are shuffled, and within a block runs of 32 rows. A *position*
counts rows over all epochs; `EpochOrder` turns positions into rows of blocks. Two ways of handing positions out:

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

RUN_ROWS = 32
PIECE_ROWS = 16_384
SMALLEST_PIECE_ROWS = 256
NO_LIMIT = 1 << 62


class Piece(NamedTuple):
    """Rows for one worker: positions `start` up to `stop`, of one epoch."""

    start: int
    stop: int

    @property
    def positions(self) -> NDArray[np.int64]:
        return np.arange(self.start, self.stop)


class BlockRows(NamedTuple):
    """A whole block in an epoch: the rows at positions `start` up to `stop`, in reading order."""

    block: int
    start: int
    stop: int
    rows: NDArray[np.int32]


class EpochOrder:
    """The order of rows in every epoch, from the run's seed and the blocks' row counts.

    >>> order = EpochOrder([3, 2], seed=1)
    >>> sorted((block, row) for block, rows in order.find(np.arange(5)) for row in rows.tolist())
    [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    """

    def __init__(self, block_rows: list[int], seed: int) -> None:
        self.num_rows = sum(block_rows)
        self._block_rows = np.array(block_rows, np.int64)
        self._seed = seed
        self._epoch = lru_cache(2)(self._shuffle_blocks)
        self._block = lru_cache(16)(self._shuffle_rows)

    def find(self, positions: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int32]]]:
        """The rows at ascending positions of one epoch: blocks, each with its rows, in order. Safe from any thread."""
        if not positions.size:
            return
        epoch = int(positions[0]) // self.num_rows
        blocks, ends = self._epoch(epoch)
        places = positions - epoch * self.num_rows
        first = int(np.searchsorted(ends, places[0], side="right"))
        last = int(np.searchsorted(ends, places[-1], side="right"))
        cuts = [0, *np.searchsorted(places, ends[first:last]).tolist(), places.size]
        for number, block in enumerate(blocks[first : last + 1].tolist()):
            begins = int(ends[first + number]) - int(self._block_rows[block])
            inside = places[cuts[number] : cuts[number + 1]]
            yield block, self._block(epoch, block)[inside - begins]

    def block_at(self, position: int) -> BlockRows:
        """The block with the row at a position, and all its rows in order."""
        epoch, place = divmod(position, self.num_rows)
        blocks, ends = self._epoch(epoch)
        number = int(np.searchsorted(ends, place, side="right"))
        block, stop = int(blocks[number]), epoch * self.num_rows + int(ends[number])
        return BlockRows(block, stop - int(self._block_rows[block]), stop, self._block(epoch, block))

    def _shuffle_blocks(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The blocks of an epoch in order, and the place in the epoch where each ends."""
        blocks = np.random.default_rng([self._seed, epoch, 0]).permutation(len(self._block_rows))
        return blocks, np.cumsum(self._block_rows[blocks])

    def _shuffle_rows(self, epoch: int, block: int) -> NDArray[np.int32]:
        """The rows of a block in the order of an epoch."""
        num_rows = int(self._block_rows[block])
        runs = np.random.default_rng([self._seed, epoch, 1 + block]).permutation(-(-num_rows // RUN_ROWS))
        starts: NDArray[np.int32] = runs.astype(np.int32) * np.int32(RUN_ROWS)
        rows: NDArray[np.int32] = np.add.outer(starts, np.arange(RUN_ROWS, dtype=np.int32)).ravel()
        rows = rows if len(rows) == num_rows else rows[rows < num_rows]
        rows.flags.writeable = False
        return rows


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


class Clocks(NamedTuple):
    """The rows of some ranks in some clocks: clock by clock, and in a clock rank by rank.

    `positions` of the rows, and `starts` [clocks × ranks + 1] of each rank's slice among them; `trained` rows were
    handed out before the first of these clocks.
    """

    positions: NDArray[np.int64]
    starts: NDArray[np.int64]
    trained: int


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
        begins, *slices = self._slices(ranks, first, stop)
        lengths = (slices[1] - slices[0]).ravel()
        starts = np.concatenate([[0], np.cumsum(lengths)])
        positions = np.arange(starts[-1]) + np.repeat(slices[0].ravel() - starts[:-1], lengths)
        return Clocks(positions, starts, int(begins[0]))

    def take_from(self, rank: int, first: int, most: int) -> NDArray[np.int64] | None:
        """The rows of `rank` in at most `most` clocks from `first` on, whether it had them before or not.

        [clocks, 3] of first position, last + 1, and rows handed out before the clock; None: out of rows for now.
        """
        with self._lock:
            stop = self._hand_out(first, most)
        if stop <= first:
            return None
        begins, starts, stops = self._slices([rank], first, stop)
        return np.stack([starts[:, 0], stops[:, 0], begins[:-1]], axis=1)

    def _hand_out(self, first: int, most: int) -> int:
        """Where a lease of clocks from `first` on ends; moves the furthest clock on as far as needed and allowed."""
        stop = min(first + most, (first // self._epoch_clocks + 1) * self._epoch_clocks, self._last_clock)
        while self.clock < stop and self.position < self._until:
            self.clock += 1
        return min(stop, self.clock)

    def _slices(self, ranks: list[int], first: int, stop: int) -> tuple[NDArray[np.int64], ...]:
        """Where clocks begin [clocks + 1], and where each rank's slice of each begins and ends [clocks, ranks]."""
        begins = np.array([self._start(clock) for clock in range(first, stop + 1)])
        rows = np.diff(begins)[:, None]
        starts, stops = (begins[:-1, None] + (np.array(ranks) + i) * rows // self._workers for i in (0, 1))
        return begins, starts, stops

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

    def take(self, rank: int, most: int = 0) -> Piece | None:
        """The next rows of a worker, at most `most` batches (0: `PIECE_ROWS`); None: out of rows for now."""
        with self._lock:
            clocks_left = self._last_clock - max(self._clocks)
            if self.position >= self._until or clocks_left <= 0:
                return None
            # Towards a last clock pieces get smaller too. Otherwise one worker would take all of its clocks at once.
            most = most or max(1, PIECE_ROWS // self._batch_size)
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
