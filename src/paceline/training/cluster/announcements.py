"""How does a worker say what it has done where gradients are too large for one frame?

It announces a step in a STEP frame without values, is told to go on (`Go`), pushes in a way of its own, and gets a
VALUES frame without values when it may pull.
"""

from __future__ import annotations

import time

from paceline.training.cluster.clocks import WorkerClock, WorkerClocks
from paceline.training.cluster.steps import LEAVE, PULL, StepFrame, Times, read_step, values_head
from paceline.wire.frames import BadFrameError, Frame, Kind
from paceline.wire.server import Peer


class Announcements:
    """The announced steps of all workers."""

    def __init__(self, clocks: WorkerClocks) -> None:
        self._clocks = clocks
        self.restart()

    def restart(self) -> None:
        """A segment begins."""
        self.service = [0.0] * len(self._clocks.workers)
        """By worker, the seconds that its push has taken."""

    def take(self, peer: Peer, frame: Frame) -> tuple[WorkerClock, StepFrame]:
        """A worker's announcement; it waits for an answer from now on."""
        step, worker = read_step(frame, "float32"), self._clocks.worker_of(peer)
        if step.batch != worker.asked + 1 or worker.waiting or not step.flags & (PULL | LEAVE):
            raise BadFrameError(f"worker {worker.rank} asks for batch {step.batch} after {worker.asked}")
        worker.asked = step.batch
        worker.arrived = worker.worked = peer.arrived
        worker.waiting = True
        worker.leaving = bool(step.flags & LEAVE)
        self.service[worker.rank] = 0.0
        return worker, step

    def answer(self, worker: WorkerClock) -> None:
        """Let a worker pull."""
        worker.waiting = False
        held, service = time.perf_counter() - worker.worked, self.service[worker.rank]
        times = Times(0, int(held * 1e9), int(service * 1e9))
        counters = self._clocks.counters
        counters[0] += 1
        counters[2] += times.service
        if worker.peer is not None:
            worker.peer.send(Kind.VALUES, 0, values_head(worker.asked, times))
