"""What does a shard do in a step of a model that has only dense values? Every push and pull covers its whole range.

Gradients and values are too large for one frame, and for keeping copies. A worker announces a push, waits for a go, and
sends it in pieces. It is told when it may pull, and fetches pieces. In sync, workers push one after the other, in the
order of their ranks, and their gradients are added up as they arrive, so one sum is enough. While a checkpoint is
fetched, workers compute, and those that are done wait with their pushes. A gradient that a lost worker has pushed only
in part cannot be undone: the run then returns to its last checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from paceline.parameters.dense import DenseStore
from paceline.training.cluster.clocks import WorkerClock, WorkerClocks, say
from paceline.training.cluster.copies import NOW, Copies
from paceline.training.cluster.messages import Go, Join, Joined
from paceline.training.cluster.shared import open_shared
from paceline.training.cluster.steps import PUSH, StepFrame, read_chunk
from paceline.wire.frames import BadFrameError, Frame
from paceline.wire.server import Peer

Floats = NDArray[np.float32]
# What fits the near caches, and how much of a gradient is taken before others get a turn.
FOLD_VALUES, TURN_VALUES = 1 << 16, 1 << 24


class PieceSteps:
    """The steps of all workers over one shard's range of the dense values."""

    def __init__(self, clocks: WorkerClocks, copies: Copies, store: DenseStore, fold: str, place: str,
                 soon: Callable[[Callable[[], None]], None]) -> None:  # fmt: skip
        """`place`: where workers of this machine can read the store's memory; `soon` calls after others had a turn."""
        self._clocks = clocks
        self._copies = copies
        self._soon = soon
        self._store = store
        self._fold = fold
        self._place = place
        self._sums = PieceSums(store, clocks)
        # By worker: its gradient, if this process sees the worker's memory.
        self._gradients: list[Floats | None] = [None] * len(clocks.workers)
        copies.released = self._let_push

    def open(self) -> None:
        self._sums.begin()

    def join(self, worker: WorkerClock, join: Join) -> Joined:
        store = self._store
        found = open_shared(join.gradient, store.layout.num_values) if self._place else None
        self._gradients[worker.rank] = None if found is None else found[store.first : store.first + store.size]
        return Joined(applied=worker.applied, values=self._place)

    def step(self, peer: Peer, frame: Frame) -> None:
        """A worker has a gradient to push, asks for values, or both."""
        worker, step = self._clocks.take_announcement(peer, frame)
        if not step.flags & PUSH:
            worker.present = not worker.leaving
            self._answer_released()
        elif step.batch - 1 <= worker.applied:
            # Replayed after a return to a checkpoint: it is in these values already.
            say(peer, Go(wanted=False))
            self._go_on(worker)
        else:
            worker.announced = step
            self._let_push()

    def _let_push(self) -> None:
        """Tell workers to push: in sync the one whose turn it is, else all unless a copy waits to be made. None while
        states are fetched.
        """
        if self._copies.held:
            return
        for worker in self._clocks.workers:
            step = worker.announced
            may_push = self._copies.at is None if self._fold == "each" else worker.rank == self._clocks.num_pushed
            if step is None or worker.pushing or worker.peer is None or not may_push:
                continue
            worker.pushing = True
            has_rows, is_seen = bool(step.rows), self._gradients[worker.rank] is not None
            say(worker.peer, Go(wanted=has_rows and not is_seen))
            if not has_rows:
                self._end_push(worker)
            elif is_seen:
                self._soon(partial(self._take_seen, worker, step))

    def _take_seen(self, worker: WorkerClock, step: StepFrame) -> None:
        """Some more of a gradient that this process sees; others get a turn before the rest."""
        began, gradient = time.perf_counter(), self._gradients[worker.rank]
        if worker.announced is not step or not worker.pushing or gradient is None:
            return  # the run has gone back to a checkpoint
        until = min(len(gradient), worker.num_taken + TURN_VALUES)
        if self._fold == "mean" and self._sums.begins_with(gradient):
            # The worker leaves it as it is until all have pushed.
            until = len(gradient)
        else:
            for start in range(worker.num_taken, until, FOLD_VALUES):
                self._fold_piece(step, start, gradient[start : min(start + FOLD_VALUES, until)])
        worker.num_taken = until
        worker.service += time.perf_counter() - began
        if until == len(gradient):
            self._end_push(worker)
        else:
            self._soon(partial(self._take_seen, worker, step))

    def chunk(self, worker: WorkerClock, peer: Peer, frame: Frame) -> None:
        """The next piece of a gradient."""
        began = time.perf_counter()
        start, sums = read_chunk(frame)
        step = worker.announced
        if step is None or not worker.pushing or worker.peer is not peer or start != worker.num_taken:
            raise BadFrameError(f"worker {worker.rank} sends a piece from {start} on that nobody waits for")
        if not 0 < len(sums) <= self._store.size - start:
            raise BadFrameError(f"worker {worker.rank} sends {len(sums)} values from {start} on")
        self._fold_piece(step, start, sums)
        worker.num_taken += len(sums)
        worker.service += time.perf_counter() - began
        if worker.num_taken == self._store.size:
            self._end_push(worker)

    def _fold_piece(self, step: StepFrame, start: int, sums: Floats) -> None:
        """Update values by a piece of a gradient; in sync by the mean of all workers', once it is there."""
        if self._fold == "each":
            self._store.apply(start, sums, step.rows, step.trained)
        else:
            self._sums.add(start, sums, step)

    def _end_push(self, worker: WorkerClock) -> None:
        """A worker's gradient is here."""
        step, clocks = worker.announced, self._clocks
        assert step is not None
        worker.announced, worker.pushing = None, False
        worker.applied = step.batch - 1
        clocks.book(step.rows, step.losses)
        if self._fold == "mean":
            self._sums.end(self._gradients[worker.rank], step)
            if clocks.add_push(worker):
                self._copies.make_at(worker.applied)
        self._go_on(worker)

    def _go_on(self, worker: WorkerClock) -> None:
        """After a push others may continue: to push, to copy, to pull."""
        worker.worked = time.perf_counter_ns()
        if worker.leaving:
            worker.present = False
        if self._is_whole():
            self._copies.make_at(NOW)
        self._let_push()
        self._answer_released()

    def _answer_released(self) -> None:
        for released in self._clocks.released():
            self._clocks.let_pull(released)

    def _is_whole(self) -> bool:
        """Whether no gradient is half applied."""
        return not any(worker.pushing for worker in self._clocks.workers)

    def may_copy(self, at: int) -> bool:
        if at == NOW:
            return self._is_whole()
        return at == self._clocks.workers[0].applied and not self._clocks.num_pushed


class PieceSums:
    """In sync, the sum of the gradients of all workers, piece by piece, which becomes one update."""

    def __init__(self, store: DenseStore, clocks: WorkerClocks) -> None:
        self._store = store
        self._clocks = clocks
        self._total: Floats = np.empty(0, np.float32)
        self._piece: Floats = np.empty(0, np.float32)
        self.begin()

    def begin(self) -> None:
        """Begin a sum."""
        self._rows = 0
        # The gradient that the sum began with, if this process sees it; else the total has it.
        self._first: Floats | None = None

    @property
    def _is_last(self) -> bool:
        """Whether all workers but one have pushed."""
        return self._clocks.num_pushed + 1 == len(self._clocks.workers)

    def begins_with(self, gradient: Floats) -> bool:
        """Begin the sum with a gradient that stays where it is, if it is the first and not the last."""
        if self._rows or self._is_last:
            return False
        self._first = gradient
        return True

    def add(self, start: int, sums: Floats, step: StepFrame) -> None:
        """Add a piece, or apply the mean if it is the last worker's."""
        last, count = self._is_last, len(sums)
        if self._rows:
            before = self._total_at(start, count) if self._first is None else self._first[start : start + count]
            # The last sum goes elsewhere: the total need not be written back to memory.
            if last and count > len(self._piece):
                self._piece = np.empty(count, np.float32)
            sums = np.add(before, sums, out=self._piece[:count] if last else self._total_at(start, count))
        elif not last:
            self._total_at(start, count)[:] = sums
        if last:
            self._store.apply(start, sums, self._rows + step.rows, step.trained)

    def end(self, gradient: Floats | None, step: StepFrame) -> None:
        """A worker's gradient, which this process may see, is in the sum."""
        if step.rows and self._first is not gradient:
            self._first = None
        self._rows += step.rows
        if not self._is_last:
            return
        if not step.rows and self._rows:
            # The last worker came without pieces.
            total = self._total_at(0, self._store.size) if self._first is None else self._first
            self._store.apply(0, total, self._rows, step.trained)
        self.begin()

    def _total_at(self, start: int, count: int) -> Floats:
        """The sum over a range of values, or what is left there of an earlier one; a view."""
        if not len(self._total):
            self._total = np.empty(self._store.size, np.float32)
        return self._total[start : start + count]
