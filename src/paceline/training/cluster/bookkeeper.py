"""What does a shard do where workers add up their gradients among themselves (`--exchange allreduce`)? It keeps books.

Every worker has all values and updates them by itself, the same as all others. The shard counts what they have done,
holds what worker 0 brings when a checkpoint is due or a segment ends, and hands it to workers that join.
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.parameters.parts import DENSE
from paceline.parameters.store import AnyStore
from paceline.training.cluster.clocks import WorkerClock, WorkerClocks, say
from paceline.training.cluster.copies import Copies
from paceline.training.cluster.messages import Go, Join, Joined
from paceline.training.cluster.shard import load_chunk
from paceline.training.cluster.steps import PUSH, read_chunk
from paceline.wire.frames import BadFrameError, Frame
from paceline.wire.server import Peer


class Bookkeeper:
    """The steps of workers that add up among themselves, as the one shard of such a run sees them."""

    def __init__(self, clocks: WorkerClocks, copies: Copies, stores: Mapping[str, AnyStore]) -> None:
        self._clocks = clocks
        self._copies = copies
        self._stores = stores
        copies.released = self._let_bring
        self.open()

    def open(self) -> None:
        # After which batch of worker 0 the states are that are here.
        self._clock_here = self._clocks.workers[0].applied

    def join(self, worker: WorkerClock, join: Join) -> Joined:
        return Joined(applied=worker.applied)

    def step(self, peer: Peer, frame: Frame) -> None:
        """A worker has done a step. Worker 0 is told to bring all states if they are wanted."""
        worker, step = self._clocks.take_announcement(peer, frame)
        wanted = False
        if step.flags & PUSH:
            worker.applied = step.batch - 1
            self._clocks.book(step.rows, step.losses)
            wanted = worker.rank == 0 and (self._copies.at == worker.applied or worker.leaving)
            if not wanted:
                say(peer, Go(wanted=False))
            self._copy_if_due()
        if wanted:
            worker.announced = step
            self._let_bring()
        else:
            self._clocks.let_pull(worker)

    def _let_bring(self) -> None:
        """Tell worker 0 to bring the states that it has announced, unless those before are still fetched."""
        worker = self._clocks.workers[0]
        if worker.announced and not worker.pushing and worker.peer and not self._copies.held:
            worker.pushing = True
            say(worker.peer, Go(wanted=True))

    def chunk(self, worker: WorkerClock, peer: Peer, frame: Frame) -> None:
        """The next piece of the states that worker 0 brings."""
        if worker.announced is None or not worker.pushing or worker.peer is not peer:
            raise BadFrameError(f"worker {worker.rank} brings states that nobody asked for")
        start, _ = read_chunk(frame)
        if start != worker.num_taken:
            raise BadFrameError(f"worker {worker.rank} brings states from {start} on after {worker.num_taken}")
        worker.num_taken += load_chunk(self._stores, frame)
        if worker.num_taken == self._stores[DENSE].size:
            worker.announced, worker.pushing = None, False
            self._clock_here = worker.applied
            self._copy_if_due()
            self._clocks.let_pull(worker)

    def may_copy(self, at: int) -> bool:
        """Whether the states have arrived, and every worker has reached this clock."""
        return at == self._clock_here and all(worker.applied == at for worker in self._clocks.workers)

    def _copy_if_due(self) -> None:
        if self.may_copy(self._clock_here):
            self._copies.make_at(self._clock_here)
