"""What does a shard do in a step of a model with a table? It applies a push, and answers a pull, by key.

A worker's frame for batch b pulls batch b and pushes batch b − d, where d is the number of batches in flight. Each push
counts once: a frame that was seen before, from a connection that was cut or a worker that died, is answered again with
the same values. Dense values of the model, if it has any, travel behind those of the keys.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.parameters.dense import DenseStore
from paceline.parameters.keyed import KeyedStore
from paceline.settings import WireConfig
from paceline.training.cluster.clocks import WorkerClock, WorkerClocks
from paceline.training.cluster.copies import NOW, Copies
from paceline.training.cluster.messages import Join, Joined
from paceline.training.cluster.steps import LEAVE, PULL, PUSH, StepFrame, Times, read_step, values_head
from paceline.wire.coding import read_keys, write_values
from paceline.wire.frames import BadFrameError, Frame, Kind
from paceline.wire.server import Peer

Floats = NDArray[np.float32]


class _Pull:
    """The keys that one pull asked for, and the values that it got; `batch` 0: none yet."""

    def __init__(self, key_dtype: np.dtype[Any], dim: int, num_dense: int) -> None:
        self.times = Times(0, 0, 0)
        self._dim, self._num_dense = dim, num_dense
        self._key_room: NDArray[Any] = np.empty(0, key_dtype)
        self._value_room: Floats = np.empty(num_dense, np.float32)
        self.ask(0, 0)

    def ask(self, batch: int, count: int) -> NDArray[Any]:
        """Begin a pull; returns room for its keys."""
        if count > len(self._key_room):
            room = count + count // 4
            self._key_room = np.empty(room, self._key_room.dtype)
            self._value_room = np.empty(room * self._dim + self._num_dense, np.float32)
        self.batch, self.answered = batch, False
        self.keys, self.values = self._key_room[:count], self._value_room[: count * self._dim + self._num_dense]
        return self.keys


# A gradient that waits for those of the other workers: its keys, its sums, and the step that brought it.
_KeptPush = tuple[NDArray[Any], Floats, StepFrame]


class KeyedSteps:
    """The steps of all workers over one shard's keys and, if the model has any, its range of the dense values."""

    def __init__(self, clocks: WorkerClocks, copies: Copies, table: KeyedStore, dense: DenseStore | None, fold: str,
                 wire: WireConfig) -> None:  # fmt: skip
        self._clocks = clocks
        self._copies = copies
        self._table = table
        self._dense = dense
        self._fold = fold
        self._wire = wire
        self.open()

    def open(self) -> None:
        # Those that may be asked for again: another shard may have lost all that is in flight, and what that waits for.
        num_dense = 0 if self._dense is None else self._dense.size
        self._pulls = [
            [_Pull(self._table.key_dtype, self._table.dim, num_dense) for _ in range(2 * worker.in_flight)]
            for worker in self._clocks.workers
        ]
        self._pushes: list[_KeptPush | None] = [None] * len(self._clocks.workers)

    def join(self, worker: WorkerClock, join: Join) -> Joined:
        return Joined(applied=worker.applied)

    def step(self, peer: Peer, frame: Frame) -> None:
        step = read_step(frame, self._wire.values)
        began = time.perf_counter()
        worker = self._clocks.worker_of(peer)
        seen = worker.has_asked(step.batch)
        pushed = step.batch - worker.in_flight
        if not seen and (step.batch != worker.asked + 1 or worker.waiting):
            raise BadFrameError(f"worker {worker.rank} asks for batch {step.batch} after {worker.asked}")
        if not step.flags & PUSH and pushed > worker.applied:
            raise BadFrameError(f"worker {worker.rank} asks for batch {step.batch} without having pushed {pushed}")
        if not step.flags & (PULL | LEAVE):
            raise BadFrameError(f"a step of worker {worker.rank} that asks for nothing")
        if seen:
            self._answer_again(worker, step.batch)
            return
        pull = self._pull_of(worker, step.batch)
        read_keys(step.coding, step.keys, self._table.size, pull.ask(step.batch, step.num_keys))
        worker.asked = step.batch
        worker.arrived = peer.arrived
        worker.waiting = True
        if step.flags & PUSH and pushed > worker.applied:
            self._take_push(worker, step, pushed)
        if step.flags & LEAVE:
            worker.leaving, worker.present = True, False
        worker.worked = time.perf_counter()
        pull.times = Times(int((began - peer.arrived) * 1e9), 0, int((worker.worked - began) * 1e9))
        for released in self._clocks.released():
            self._answer(released)

    def may_copy(self, at: int) -> bool:
        return at in (NOW, self._clocks.workers[0].applied) and not self._clocks.num_pushed

    # -- pushes

    def _take_push(self, worker: WorkerClock, step: StepFrame, batch: int) -> None:
        """Apply the gradient of a batch, or keep it until all workers' are there and apply their mean."""
        pull = self._pull_of(worker, batch)
        if pull.batch != batch or len(step.pushed) != len(pull.values):
            pulled = f"{len(pull.values)} values of batch {pull.batch}"
            raise BadFrameError(f"worker {worker.rank} pushes {len(step.pushed)} values of batch {batch}, for {pulled}")
        worker.applied = batch
        if self._fold == "each":
            self._table.apply(pull.keys, step.pushed, step.rows, step.trained)
            if self._dense is not None and step.rows:
                self._dense.apply(0, self._dense_of(step.pushed), step.rows, step.trained)
            self._clocks.book(step.rows, step.losses)
            return
        self._pushes[worker.rank] = pull.keys, step.pushed.copy(), step
        if self._clocks.add_push(worker):
            self._fold_pushes()
            self._copies.make_at(batch)

    def _fold_pushes(self) -> None:
        """One update from the pushes of all workers, in the order of their ranks."""
        pushes = [push for push in self._pushes if push is not None]
        rows, trained = sum(step.rows for *_, step in pushes), pushes[0][2].trained
        self._table.fold([(keys, sums) for keys, sums, _ in pushes], rows, trained)
        if self._dense is not None:
            self._dense.fold([(0, self._dense_of(sums)) for _, sums, step in pushes if step.rows], rows, trained)
        for *_, step in pushes:
            self._clocks.book(step.rows, step.losses)
        self._pushes = [None] * len(pushes)

    def _dense_of(self, values: Floats) -> Floats:
        """What stands behind the values of keys."""
        assert self._dense is not None
        return values[len(values) - self._dense.size :]

    # -- answers

    def _answer(self, worker: WorkerClock) -> None:
        began = time.perf_counter()
        pull = self._pull_of(worker, worker.asked)
        worker.waiting = False
        pull.answered = True
        self._table.gather(pull.keys, pull.values)
        if self._dense is not None:
            self._dense.gather(0, self._dense_of(pull.values))
        values = self._values_of(pull)
        queue, _, service = pull.times
        held = int((began - worker.worked) * 1e9)
        pull.times = Times(queue, held, service + int((time.perf_counter() - began) * 1e9))
        counters = self._clocks.counters
        counters[0] += 1
        counters[1] += queue
        counters[2] += pull.times.service
        self._send(worker, pull, values)

    def _answer_again(self, worker: WorkerClock, batch: int) -> None:
        """Give a worker, or its successor, the answer that was given before; or leave it waiting."""
        pull = self._pull_of(worker, batch)
        if pull.batch == batch and pull.answered:
            self._send(worker, pull, self._values_of(pull))
        elif not worker.waiting:
            raise BadFrameError(f"worker {worker.rank} asks again for batch {batch}, which was never asked for")

    def _values_of(self, pull: _Pull) -> NDArray[Any]:
        """What a pull gets, as it goes over the wire: the values of its keys, or of all keys, then the dense ones."""
        values, count = pull.values, len(pull.keys)
        if self._wire.pull == "all" and count:
            table, dim = self._table, self._table.dim
            found = table.read(0, table.size, self._clocks.rows).reshape(-1, dim)
            found[pull.keys] = values[: count * dim].reshape(-1, dim)
            values = np.concatenate([found.ravel(), values[count * dim :]])
        return write_values(values, self._wire.values)

    def _send(self, worker: WorkerClock, pull: _Pull, values: NDArray[Any]) -> None:
        if worker.peer is not None:
            worker.peer.send(Kind.VALUES, 0, values_head(pull.batch, pull.times), values)

    def _pull_of(self, worker: WorkerClock, batch: int) -> _Pull:
        """Where the pull of a batch is kept, or was."""
        pulls = self._pulls[worker.rank]
        return pulls[batch % len(pulls)]
