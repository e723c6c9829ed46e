"""What does a shard do for a dense model? The same as for a sparse one, without keys: every push and pull is all of it.

Gradients and weights are too large for one frame, and for keeping copies. A worker announces a push in a STEP frame,
is told to go on, and sends it in pieces; it is told when it may pull, and fetches pieces. In sync workers push one
after the other, in the order of their ranks, and are added up as they come, so one sum is all that is kept. What a lost
worker has half pushed cannot be taken back: the run then returns to its last checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from paceline.config import RunConfig
from paceline.kernels.dense import add_to
from paceline.optimizers.dense import DenseRule, num_planes
from paceline.training.cluster.messages import Go, Reset
from paceline.training.cluster.parts import Parts
from paceline.training.cluster.shard import CHUNK_HEAD_BYTES, NOW, ShardService, ShardWorker, say
from paceline.training.cluster.steps import LEAVE, PULL, PUSH, Step, Times, read_step, values_head
from paceline.training.dense import check_room, count_updates
from paceline.wire.frames import BadFrameError, Frame, Kind
from paceline.wire.server import Peer

Floats = NDArray[np.float32]


class DenseSlice:
    """A range of a model's values and what the optimizer remembers of them."""

    key_dtype = np.dtype(np.uint32)

    def __init__(self, config: RunConfig, parts: Parts, shard: int, num_trained: int, num_rows: int) -> None:
        self.num_keys = parts.size(shard)
        self.width = num_planes(config.optimizer)
        # With a sum, and a copy while a checkpoint is taken.
        check_room(4 * self.num_keys * (2 * self.width + 1), self.num_keys)
        self._first = parts.of(shard).start
        self._rule = DenseRule(config.optimizer, num_trained, count_updates(config, num_rows))
        self._planes: Floats = np.zeros((self.width, self.num_keys), np.float32)
        self._total: Floats = np.empty(0, np.float32)
        self._piece: Floats = np.empty(0, np.float32)
        self._copy: Floats = np.empty((0, 0), np.float32)

    def total(self, start: int, count: int) -> Floats:
        """The sum of gradients so far, or what is left there of an earlier one; a view."""
        if not len(self._total):
            self._total = np.empty(self.num_keys, np.float32)
        return self._total[start : start + count]

    def add(self, start: int, sums: Floats) -> None:
        """Add a piece of a gradient to the sum."""
        add_to(self.total(start, len(sums)), sums)

    def add_last(self, start: int, sums: Floats, rows: int, trained: int) -> None:
        """Update a range of values by the mean of all that was added up there and this piece."""
        # The sum itself is needed no more: to leave it as it is spares its way back to memory.
        if len(sums) > len(self._piece):
            self._piece = np.empty(len(sums), np.float32)
        piece = np.add(self.total(start, len(sums)), sums, out=self._piece[: len(sums)])
        self.apply(start, piece, rows, trained)

    def apply(self, start: int, sums: Floats, rows: int, trained: int) -> None:
        """Update a range of values by a piece of a gradient."""
        self._rule.apply(self._planes[:, start : start + len(sums)], sums, rows, trained, self._first + start)

    def weights(self, start: int, count: int, rows: int) -> Floats:
        """The values from `start` on; a view."""
        return self._planes[0, start : start + count]

    def take_copy(self) -> None:
        """Set all states aside, for `copied`."""
        if not self._copy.size:
            self._copy = np.empty_like(self._planes)
        np.copyto(self._copy, self._planes)

    def copied(self, start: int, count: int) -> Floats:
        """States of the last copy, [count, width], flat."""
        return np.ascontiguousarray(self._copy[:, start : start + count].T).ravel()

    def states(self, start: int, count: int) -> Floats:
        """States as they are, [count, width], flat."""
        return np.ascontiguousarray(self._planes[:, start : start + count].T).ravel()

    def load(self, start: int, states: Floats) -> None:
        """Put states in place from key `start` on."""
        found = states.reshape(-1, self.width)
        self._planes[:, start : start + len(found)] = found.T

    def clear(self) -> None:
        """All states as zeros."""
        self._planes.fill(0)

    def warm_up(self) -> None:
        """Load or compile the loops; changes nothing."""
        nothing = np.zeros(0, np.float32)
        add_to(nothing, nothing)
        self.apply(0, nothing, 1, 0)
        self._rule.apply(np.zeros((self.width, 1), np.float32), np.zeros(1, np.float32), 1, 0)


class DenseShardService(ShardService):
    """One shard of a dense model."""

    slice: DenseSlice

    def __init__(self, config: RunConfig, slice_: DenseSlice, refused: Callable[[], int]) -> None:
        super().__init__(config, slice_, refused)
        self._total_rows = 0

    def received(self, peer: Peer, frame: Frame) -> None:
        if frame.kind == Kind.STEP:
            self._announced(peer, read_step(frame, "float32"))
        elif frame.kind == Kind.CHUNK and isinstance(peer.tag, ShardWorker):
            self._take_piece(peer.tag, peer, frame)
        else:
            super().received(peer, frame)

    def _announced(self, peer: Peer, step: Step) -> None:
        """A worker has a gradient to push, asks for weights, or both."""
        worker = peer.tag
        if not isinstance(worker, ShardWorker) or worker.peer is not peer:
            raise BadFrameError(f"a step from {peer.address}, which is no worker now")
        if step.batch != worker.asked + 1 or worker.waiting or not step.flags & (PULL | LEAVE):
            raise BadFrameError(f"worker {worker.rank} asks for batch {step.batch} after {worker.asked}")
        worker.asked = step.batch
        worker.arrived = worker.worked = peer.arrived
        worker.waiting = True
        worker.service = 0.0
        worker.leaving = bool(step.flags & LEAVE)
        if not step.flags & PUSH:
            worker.present = not worker.leaving
            self._answer_who_may_go_on()
        elif step.batch - 1 <= worker.applied:
            # Replayed after a return to a checkpoint: it is in these values already.
            say(peer, Go(wanted=False))
            self._pushed(worker)
        else:
            worker.step, worker.received = step, 0
            self._let_push()

    def _let_push(self) -> None:
        """Tell workers to push: in sync the one whose turn it is, else all, but for a copy that waits to be made."""
        for worker in self._workers:
            if worker.step is None or worker.pushing or worker.peer is None:
                continue
            if self._fold == "mean" and worker.rank != self._num_pushed:
                continue
            if self._fold == "each" and self._copy_at is not None:
                continue
            worker.pushing = True
            if self._fold == "mean" and not self._total_rows and len(self._workers) > 1:
                worker.peer.incoming.sink = partial(self._place, worker)
            say(worker.peer, Go(wanted=bool(worker.step.rows)))
            if not worker.step.rows:
                self._end_push(worker)

    def _place(self, worker: ShardWorker, kind: Kind, length: int) -> memoryview | None:
        """Where a piece of a gradient that begins a sum goes: into the sum. Whether it is one is seen later."""
        count = (length - CHUNK_HEAD_BYTES) // 4
        if kind != Kind.CHUNK or not 0 < count <= self.slice.num_keys - worker.received or length % 4:
            return None
        worker.placed = self.slice.total(worker.received, count)
        return worker.placed.data.cast("B")

    def _take_piece(self, worker: ShardWorker, peer: Peer, frame: Frame) -> None:
        """The next piece of a gradient."""
        began = time.perf_counter()
        if len(frame.body) < CHUNK_HEAD_BYTES or len(frame.body) % 4:
            raise BadFrameError(f"worker {worker.rank} sends a piece of {len(frame.body)} bytes")
        start = int.from_bytes(frame.body[:CHUNK_HEAD_BYTES].tobytes(), "little")
        placed, worker.placed = worker.placed, None
        sums = frame.body[CHUNK_HEAD_BYTES:].view(np.float32) if placed is None else placed
        step = worker.step
        if step is None or not worker.pushing or worker.peer is not peer or start != worker.received:
            raise BadFrameError(f"worker {worker.rank} sends a piece from {start} on that nobody waits for")
        if not 0 < len(sums) <= self.slice.num_keys - start:
            raise BadFrameError(f"worker {worker.rank} sends {len(sums)} values from {start} on")
        rows, last = self._total_rows + step.rows, self._num_pushed + 1 == len(self._workers)
        if self._fold == "each" or (last and rows == step.rows):
            self.slice.apply(start, sums, step.rows, step.trained)
        elif last:
            self.slice.add_last(start, sums, rows, step.trained)
        elif self._total_rows:
            self.slice.add(start, sums)
        elif placed is None:
            raise BadFrameError(f"worker {worker.rank} sends a piece that it was not told to")
        worker.received += len(sums)
        worker.service += time.perf_counter() - began
        if worker.received == self.slice.num_keys:
            self._end_push(worker)

    def _end_push(self, worker: ShardWorker) -> None:
        """A worker's gradient is here."""
        step = worker.step
        assert step is not None
        worker.step, worker.pushing = None, False
        if worker.peer is not None:
            worker.peer.incoming.sink = None
        worker.applied = step.batch - 1
        self._book(step.rows, step.losses)
        if self._fold == "mean":
            self._total_rows += step.rows
            self._num_pushed += 1
            worker.added = True
            if self._num_pushed == len(self._workers):
                if not step.rows and self._total_rows:
                    # It came without pieces.
                    self.slice.apply(0, self.slice.total(0, self.slice.num_keys), self._total_rows, step.trained)
                self._num_pushed = self._total_rows = 0
                for other in self._workers:
                    other.added = False
                if self._copy_at is not None and worker.applied == self._copy_at[0]:
                    self._copy(self._copy_at[1])
        self._pushed(worker)

    def _pushed(self, worker: ShardWorker) -> None:
        """Whoever pushed, others may go on: to push, to copy, to pull."""
        worker.worked = time.perf_counter()
        if worker.leaving:
            worker.present = False
        if self._fold == "each" and self._copy_at is not None and self._whole():
            self._copy(self._copy_at[1])
        self._let_push()
        self._answer_who_may_go_on()

    def _whole(self) -> bool:
        """Whether no gradient is half applied."""
        return not any(worker.pushing for worker in self._workers)

    def _may_copy(self, at: int) -> bool:
        return self._whole() if at == NOW else super()._may_copy(at)

    def _copy(self, peer: Peer) -> None:
        super()._copy(peer)
        self._let_push()

    def _reset(self, reset: Reset) -> None:
        super()._reset(reset)
        self._total_rows = 0

    def _holds(self, worker: ShardWorker) -> bool:
        """In sync whoever has pushed waits until all have."""
        return worker.step is not None or worker.added

    def _slowest_ranks(self) -> list[int]:
        if self._num_pushed:
            return [worker.rank for worker in self._workers if not worker.added]
        return super()._slowest_ranks()

    def _answer(self, worker: ShardWorker) -> None:
        worker.waiting = False
        held, service = time.perf_counter() - worker.worked, worker.service
        times = Times(0, int(held * 1e9), int(service * 1e9))
        counters = self.counters
        counters[0] += 1
        counters[2] += times.service
        if worker.peer is not None:
            worker.peer.send(Kind.VALUES, 0, values_head(worker.asked, times))
