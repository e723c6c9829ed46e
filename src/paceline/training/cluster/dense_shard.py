"""What does a shard do for a dense model? The same as for a sparse one, without keys: every push and pull is all of it.

Gradients and weights are too large for one frame, and for keeping copies. A worker announces a push in a STEP frame,
is told to go on, and sends it in pieces; it is told when it may pull, and fetches pieces. In sync workers push one
after the other, in the order of their ranks, and are added up as they come, so one sum is all that is kept. While a
checkpoint is fetched workers compute, and whoever is done with that waits with its push. What a lost worker has half
pushed cannot be taken back: the run then returns to its last checkpoint.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from paceline.config import RunConfig
from paceline.parameters.optimizers.dense import DenseRule, num_planes
from paceline.parameters.parts import Parts
from paceline.training.cluster.messages import Fetch, Go, Join, Joined, Reset
from paceline.training.cluster.shard import CHUNK_HEAD_BYTES, NOW, ShardService, ShardWorker, say
from paceline.training.cluster.shared import find, share
from paceline.training.cluster.steps import LEAVE, PULL, PUSH, Step, Times, read_step, values_head
from paceline.training.embedded.dense import check_room, count_updates
from paceline.wire.frames import BadFrameError, Frame, Kind
from paceline.wire.server import Peer

Floats = NDArray[np.float32]
# What fits the near caches, and how much of a gradient is taken before others get a turn.
FOLD_VALUES, TURN_VALUES = 1 << 16, 1 << 24
# So long after the connection of whoever fetches states has broken it may be back.
BACK_SECONDS = 5.0


class DenseSlice:
    """A range of a model's values and what the optimizer remembers of them."""

    key_dtype = np.dtype(np.uint32)

    def __init__(self, config: RunConfig, parts: Parts, shard: int, num_trained: int, num_rows: int,
                 shared: bool = False) -> None:  # fmt: skip
        """`shared`: workers of this machine read the weights where they are, and `place` says where."""
        self.num_keys = parts.size(shard)
        self.width = num_planes(config.optimizer)
        # With a sum.
        check_room(4 * self.num_keys * (self.width + 1), self.num_keys)
        self.first, self.num_keys_of_model = parts.of(shard).start, parts.num_keys
        self._rule = DenseRule(config.optimizer, num_trained, count_updates(config, num_rows))
        num_states = self.width * self.num_keys
        states, self.place = share(num_states) if shared else (np.zeros(num_states, np.float32), "")
        self._planes: Floats = states.reshape(self.width, self.num_keys)
        self._total: Floats = np.empty(0, np.float32)
        self._piece: Floats = np.empty(0, np.float32)

    def total(self, start: int, count: int) -> Floats:
        """The sum of gradients over a range of values, or what is left there of an earlier one; a view."""
        if not len(self._total):
            self._total = np.empty(self.num_keys, np.float32)
        return self._total[start : start + count]

    def apply_with(self, start: int, sums: Floats, more: Floats, rows: int, trained: int) -> None:
        """Update a range of values by the mean of two pieces of gradients."""
        # Neither is needed any more: to leave them as they are spares their way back to memory.
        if len(sums) > len(self._piece):
            self._piece = np.empty(len(sums), np.float32)
        self.apply(start, np.add(sums, more, out=self._piece[: len(sums)]), rows, trained)

    def apply(self, start: int, sums: Floats, rows: int, trained: int) -> None:
        """Update a range of values by a piece of a gradient."""
        self._rule.apply(self._planes[:, start : start + len(sums)], sums, rows, trained, self.first + start)

    def weights(self, start: int, count: int, rows: int) -> Floats:
        """The values from `start` on; a view."""
        return self._planes[0, start : start + count]

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
        self.apply(0, nothing, 1, 0)
        # Of gradients that this process only sees, too.
        nothing.flags.writeable = False
        self.apply(0, nothing, 1, 0)
        self._rule.apply(np.zeros((self.width, 1), np.float32), np.zeros(1, np.float32), 1, 0)


class DenseShardService(ShardService):
    """One shard of a dense model."""

    slice: DenseSlice

    def __init__(self, config: RunConfig, slice_: DenseSlice, refused: Callable[[], int]) -> None:
        super().__init__(config, slice_, refused)
        self._total_rows = 0
        self.soon: Callable[[Callable[[], None]], None] = lambda call: call()
        """How to be called again after others had a turn."""
        # The gradient that a sum began with, where this process sees it; else the sum has it.
        self._first: Floats | None = None
        # Who fetches states, which must not change until then; and when that ends if its connection is gone.
        self._fetcher: Peer | None = None
        self._fetched_by = math.inf

    def _joined(self, worker: ShardWorker, join: Join) -> Joined:
        worker.gradient = find(join.gradient, self.slice.num_keys_of_model) if self.slice.place else None
        if worker.gradient is not None:
            worker.gradient = worker.gradient[self.slice.first : self.slice.first + self.slice.num_keys]
        return Joined(applied=worker.applied, weights=self.slice.place)

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
        """Tell workers to push: in sync the one whose turn it is, else all; but for a copy that waits to be made, and
        none while states are fetched.
        """
        if self._fetcher is not None:
            return
        for worker in self._workers:
            if worker.step is None or worker.pushing or worker.peer is None:
                continue
            if self._fold == "mean" and worker.rank != self._num_pushed:
                continue
            if self._fold == "each" and self._copy_at is not None:
                continue
            worker.pushing = True
            has_rows, is_seen = bool(worker.step.rows), worker.gradient is not None
            say(worker.peer, Go(wanted=has_rows and not is_seen))
            if not has_rows:
                self._end_push(worker)
            elif is_seen:
                self.soon(partial(self._take_seen, worker, worker.step))

    def _take_seen(self, worker: ShardWorker, step: Step) -> None:
        """Some more of a gradient that this process sees; others get a turn before the rest."""
        began, gradient = time.perf_counter(), worker.gradient
        if worker.step is not step or not worker.pushing or gradient is None:
            return  # the run has gone back to a checkpoint
        until = min(len(gradient), worker.received + TURN_VALUES)
        if self._fold == "mean" and not self._total_rows and self._num_pushed + 1 < len(self._workers):
            # The worker leaves it as it is until all have pushed.
            self._first, until = gradient, len(gradient)
        else:
            for start in range(worker.received, until, FOLD_VALUES):
                self._fold_piece(step, start, gradient[start : min(start + FOLD_VALUES, until)])
        worker.received = until
        worker.service += time.perf_counter() - began
        if until == len(gradient):
            self._end_push(worker)
        else:
            self.soon(partial(self._take_seen, worker, step))

    def _take_piece(self, worker: ShardWorker, peer: Peer, frame: Frame) -> None:
        """The next piece of a gradient."""
        began = time.perf_counter()
        if len(frame.body) < CHUNK_HEAD_BYTES or len(frame.body) % 4:
            raise BadFrameError(f"worker {worker.rank} sends a piece of {len(frame.body)} bytes")
        start = int.from_bytes(frame.body[:CHUNK_HEAD_BYTES].tobytes(), "little")
        sums = frame.body[CHUNK_HEAD_BYTES:].view(np.float32)
        step = worker.step
        if step is None or not worker.pushing or worker.peer is not peer or start != worker.received:
            raise BadFrameError(f"worker {worker.rank} sends a piece from {start} on that nobody waits for")
        if not 0 < len(sums) <= self.slice.num_keys - start:
            raise BadFrameError(f"worker {worker.rank} sends {len(sums)} values from {start} on")
        self._fold_piece(step, start, sums)
        worker.received += len(sums)
        worker.service += time.perf_counter() - began
        if worker.received == self.slice.num_keys:
            self._end_push(worker)

    def _fold_piece(self, step: Step, start: int, sums: Floats) -> None:
        """Update values by a piece of a gradient; in sync by the mean of all workers', once it is there."""
        rows, last = self._total_rows + step.rows, self._num_pushed + 1 == len(self._workers)
        if self._fold == "each" or (last and rows == step.rows):
            self.slice.apply(start, sums, step.rows, step.trained)
            return
        if not self._total_rows:
            self.slice.total(start, len(sums))[:] = sums
            return
        before = self.slice.total(start, len(sums)) if self._first is None else self._first[start : start + len(sums)]
        if last:
            self.slice.apply_with(start, before, sums, rows, step.trained)
        else:
            np.add(before, sums, out=self.slice.total(start, len(sums)))

    def _end_push(self, worker: ShardWorker) -> None:
        """A worker's gradient is here."""
        step = worker.step
        assert step is not None
        worker.step, worker.pushing = None, False
        worker.applied = step.batch - 1
        self._book(step.rows, step.losses)
        if self._fold == "mean":
            if step.rows and self._first is not worker.gradient:
                self._first = None
            self._total_rows += step.rows
            self._num_pushed += 1
            worker.added = True
            if self._num_pushed == len(self._workers):
                if not step.rows and self._total_rows:
                    # It came without pieces.
                    total = self.slice.total(0, self.slice.num_keys) if self._first is None else self._first
                    self.slice.apply(0, total, self._total_rows, step.trained)
                self._first = None
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

    # -- what a checkpoint needs

    def _set_aside(self, peer: Peer) -> None:
        """Instead of a copy, which would take as much memory again: nothing changes until all has been fetched."""
        self._fetcher, self._fetched_by = peer, math.inf

    def _fetch(self, peer: Peer, fetch: Fetch) -> None:
        if fetch.what == "copy":
            if self._fetcher is None:
                raise BadFrameError("states are asked for that may have changed since")
            # It may come over another connection, where the first was cut.
            self._fetcher, self._fetched_by = peer, math.inf
        super()._fetch(peer, fetch)

    def _states(self, fetch: Fetch) -> Floats:
        return self.slice.states(fetch.start, fetch.count)

    def _fetched(self) -> None:
        self._fetcher = None
        self._let_push()

    def closed(self, peer: Peer) -> None:
        super().closed(peer)
        if self._fetcher is peer:
            self._fetched_by = time.monotonic() + BACK_SECONDS

    def tick(self) -> None:
        if self._fetcher is not None and time.monotonic() > self._fetched_by:
            self._fetched()
        super().tick()
        if self._fetcher is not None:
            self.doing = "hands out its states for a checkpoint"

    def _reset(self, reset: Reset) -> None:
        super()._reset(reset)
        self._total_rows, self._first, self._fetcher = 0, None, None

    def _holds(self, worker: ShardWorker) -> bool:
        """In sync whoever has pushed waits until all have."""
        return worker.step is not None or worker.added

    def _slowest_ranks(self) -> list[int]:
        if self._fetcher is not None:
            return []  # nobody waits for a worker
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
