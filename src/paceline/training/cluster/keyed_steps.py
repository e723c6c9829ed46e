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
from paceline.training.cluster.pulls import Pull, Pulls
from paceline.training.cluster.steps import LEAVE, PULL, PUSH, StepFrame, Times, read_step, values_head
from paceline.wire.coding import read_keys, write_values
from paceline.wire.frames import BadFrameError, Frame, Kind
from paceline.wire.server import Peer

Floats = NDArray[np.float32]


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
        # Those that may be asked for again: another shard may have lost all that is in flight, and what that waits for.
        kept, num_dense = 2 * clocks.arrays.in_flight, 0 if dense is None else dense.size
        self.pulls = Pulls(len(clocks.workers), kept, table.key_dtype, table.dim, num_dense, fold == "mean")

    def open(self) -> None:
        self.pulls.begin()

    @property
    def can_compile(self) -> bool:
        """Whether a compiled loop can serve these steps: keys and values go as they are, for a table whose rules stay
        the same.
        """
        plain = self._wire.values == "float32" and self._wire.pull == "keys" and not self._wire.key_deltas
        return plain and self._dense is None and not self._table.layout.decays

    def join(self, worker: WorkerClock, join: Join) -> Joined:
        return Joined(applied=worker.applied)

    def step(self, peer: Peer, frame: Frame) -> None:
        step = read_step(frame, self._wire.values)
        began = time.perf_counter_ns()
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
        if step.num_keys > self._table.size:
            raise BadFrameError(f"worker {worker.rank} asks for {step.num_keys} of {self._table.size} keys")
        pull = self.pulls.of(worker.rank, step.batch)
        read_keys(step.coding, step.keys, self._table.size, pull.clear(step.num_keys))
        pull.ask(step.batch, step.num_keys)
        worker.asked = step.batch
        worker.arrived = peer.arrived
        worker.waiting = True
        if step.flags & PUSH and pushed > worker.applied:
            self._take_push(worker, step, pushed)
        if step.flags & LEAVE:
            worker.leaving, worker.present = True, False
        worker.worked = time.perf_counter_ns()
        pull.times = Times(began - peer.arrived, 0, worker.worked - began)
        for released in self._clocks.released():
            self._answer(released)

    def may_copy(self, at: int) -> bool:
        return at in (NOW, self._clocks.workers[0].applied) and not self._clocks.num_pushed

    # -- pushes

    def _take_push(self, worker: WorkerClock, step: StepFrame, batch: int) -> None:
        """Apply the gradient of a batch, or keep it until all workers' are there and apply their mean."""
        pull = self.pulls.of(worker.rank, batch)
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
        kept, rank = self.pulls.arrays, worker.rank
        kept.sums[rank, : len(step.pushed)] = step.pushed
        kept.rows[rank], kept.losses[rank], kept.trained[rank] = step.rows, step.losses, step.trained
        if self._clocks.add_push(worker):
            self._fold_pushes()
            self._copies.make_at(batch)

    def _fold_pushes(self) -> None:
        """One update from the pushes of all workers, in the order of their ranks."""
        kept = self.pulls.arrays
        pulls = [self.pulls.of(worker.rank, worker.applied) for worker in self._clocks.workers]
        sums = [kept.sums[rank, : len(pull.values)] for rank, pull in enumerate(pulls)]
        num_rows, trained = int(kept.rows.sum()), kept.trained.item(0)
        self._table.fold([(pull.keys, given) for pull, given in zip(pulls, sums, strict=True)], num_rows, trained)
        if self._dense is not None:
            pushed = zip(kept.rows.tolist(), sums, strict=True)
            self._dense.fold([(0, self._dense_of(given)) for rows, given in pushed if rows], num_rows, trained)
        for rows, losses in zip(kept.rows.tolist(), kept.losses.tolist(), strict=True):
            self._clocks.book(rows, losses)

    def _dense_of(self, values: Floats) -> Floats:
        """What stands behind the values of keys."""
        assert self._dense is not None
        return values[len(values) - self._dense.size :]

    # -- answers

    def _answer(self, worker: WorkerClock) -> None:
        began = time.perf_counter_ns()
        pull = self.pulls.of(worker.rank, worker.asked)
        worker.waiting = False
        found = pull.answer()
        self._table.gather(pull.keys, found)
        if self._dense is not None:
            self._dense.gather(0, self._dense_of(found))
        values = self._values_of(pull)
        queue, _, service = pull.times
        pull.times = times = Times(queue, began - worker.worked, service + time.perf_counter_ns() - began)
        self._clocks.count(times)
        self._send(worker, pull, values)

    def _answer_again(self, worker: WorkerClock, batch: int) -> None:
        """Give a worker, or its successor, the answer that was given before; or leave it waiting."""
        pull = self.pulls.of(worker.rank, batch)
        if pull.batch == batch and pull.answered:
            self._send(worker, pull, self._values_of(pull))
        elif not worker.waiting:
            raise BadFrameError(f"worker {worker.rank} asks again for batch {batch}, which was never asked for")

    def _values_of(self, pull: Pull) -> NDArray[Any]:
        """What a pull gets, as it goes over the wire: the values of its keys, or of all keys, then the dense ones."""
        values, count = pull.values, len(pull.keys)
        if self._wire.pull == "all" and count:
            table, dim = self._table, self._table.dim
            found = table.read(0, table.size, self._clocks.rows).reshape(-1, dim)
            found[pull.keys] = values[: count * dim].reshape(-1, dim)
            values = np.concatenate([found.ravel(), values[count * dim :]])
        return write_values(values, self._wire.values)

    def _send(self, worker: WorkerClock, pull: Pull, values: NDArray[Any]) -> None:
        if worker.peer is not None:
            worker.peer.send(Kind.VALUES, 0, values_head(pull.batch, pull.times), values)
