"""Who was given which rows, so that a worker's successor gets the same ones?

A worker's batches are numbered from 1. Asking again for a batch that was handed out gives the same rows, also to a
successor. Which were handed out and may not be in all shards yet is part of every checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.data.rows import ClockRows, QueueRows
from paceline.errors import RunError
from paceline.training.checkpoint import Handed

# A worker is given work for about this long at a time, and at most this many rows: enough to hide the asking, little
# enough to stop soon.
SHORTEST_SECONDS, LONGEST_SECONDS = 0.2, 0.8
MOST_ROWS = 65_536

Piece = tuple[int, int, int]


class SegmentStart(NamedTuple):
    """By worker: the last batch before the segment, from which its clocks count, and the last that all shards have.

    They differ if a run continues from a cut in the middle of a segment: a worker that was ahead then is ahead now.
    """

    bases: list[int]
    done: list[int]


class LeaseSizes:
    """How many batches to give a worker at a time: twice as many when it soon comes back, half when it is late."""

    def __init__(self, num_workers: int, batch_size: int, now: Callable[[], float] = time.perf_counter) -> None:
        self._most = max(1, MOST_ROWS // batch_size)
        self._sizes = [1] * num_workers
        self._last = [0.0] * num_workers
        self._now = now

    def next(self, rank: int) -> int:
        now = self._now()
        seconds, self._last[rank] = now - self._last[rank], now
        if seconds < SHORTEST_SECONDS:
            self._sizes[rank] = min(self._most, 2 * self._sizes[rank])
        elif seconds > LONGEST_SECONDS:
            self._sizes[rank] = max(1, self._sizes[rank] // 2)
        return self._sizes[rank]


class ClockLeases:
    """Pace sync: batch b of a worker is its slice of clock b − 1, so there is nothing to remember."""

    def __init__(self, feed: ClockRows, sizes: LeaseSizes, num_workers: int) -> None:
        self.feed = feed
        self._sizes = sizes
        self._num_workers = num_workers

    def take(self, rank: int, batch: int) -> NDArray[np.int64] | None:
        """The rows of a worker's batches from `batch` on, [batches, 3]: start, stop, and rows handed out before."""
        return self.feed.take_from(rank, batch - 1, self._sizes.next(rank))

    def begin_segment(self) -> SegmentStart:
        """Where each worker stands when a segment begins. Only while all are paused."""
        batches = [self.feed.clock] * self._num_workers
        return SegmentStart(batches, batches)

    def handed(self, applied: list[list[int]], rows: list[int]) -> Handed:
        """What a cut needs in which `applied[shard][rank]` is the last batch that is contained."""
        return Handed(applied=applied, rows=rows)


@dataclass
class _Share:
    """What one worker was handed: pieces in order, and the number of its next batch."""

    pieces: list[Piece]
    next_batch: int


def _contained(applied: list[list[int]]) -> list[int]:
    """By worker, the last batch that all shards have."""
    return [min(ranks) for ranks in zip(*applied, strict=True)]


class QueueLeases:
    """Other paces: pieces from one queue, each remembered with the number of its first batch."""

    def __init__(self, feed: QueueRows, sizes: LeaseSizes, batch_size: int, handed: Handed, num_workers: int) -> None:
        self.feed = feed
        self._sizes = sizes
        self._batch_size = batch_size
        done = _contained(handed.applied) or [0] * num_workers
        self._shares = [_Share([], batch + 1) for batch in done]
        for share, pieces in zip(self._shares, handed.open, strict=False):
            for piece in pieces:
                self._add(share, piece[1], piece[2])
        self._segment = SegmentStart(handed.bases or done, done)
        self._restored = any(handed.open)

    def take(self, rank: int, batch: int) -> NDArray[np.int64] | None:
        share = self._shares[rank]
        if batch == share.next_batch:
            piece = self.feed.take(rank, self._sizes.next(rank))
            if piece is None:
                return None
            self._add(share, piece.start, piece.stop)
        for first, start, stop in reversed(share.pieces):
            if first <= batch < first + self._num_batches(start, stop):
                starts = np.arange(start + (batch - first) * self._batch_size, stop, self._batch_size)
                return np.stack([starts, np.minimum(starts + self._batch_size, stop), starts], axis=1)
        raise RunError(f"worker {rank} asks for batch {batch}, which it was never given", "this is a bug in paceline")

    def begin_segment(self) -> SegmentStart:
        """A restored run first does what some shard lacks, as part of the segment that it was cut from."""
        if not self._restored:
            for share in self._shares:
                share.pieces.clear()
            done = [share.next_batch - 1 for share in self._shares]
            self._segment = SegmentStart(done, done)
        self._restored = False
        return self._segment

    def handed(self, applied: list[list[int]], rows: list[int]) -> Handed:
        pieces = [self._after(*pair) for pair in zip(self._shares, _contained(applied), strict=True)]
        return Handed(applied=applied, rows=rows, bases=self._segment.bases, open=pieces)

    def _after(self, share: _Share, batch: int) -> list[Piece]:
        """The pieces of a share, or parts of them, that lie after a batch."""
        later = []
        for first, start, stop in share.pieces:
            skipped = max(0, batch + 1 - first)
            if skipped < self._num_batches(start, stop):
                later.append((first + skipped, start + skipped * self._batch_size, stop))
        return later

    def _add(self, share: _Share, start: int, stop: int) -> None:
        share.pieces.append((share.next_batch, start, stop))
        share.next_batch += self._num_batches(start, stop)

    def _num_batches(self, start: int, stop: int) -> int:
        return -(-(stop - start) // self._batch_size)


RowLeases = ClockLeases | QueueLeases
