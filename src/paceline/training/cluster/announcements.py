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


def take_announcement(clocks: WorkerClocks, peer: Peer, frame: Frame) -> tuple[WorkerClock, StepFrame]:
    """A worker's announcement; it waits for an answer from now on."""
    step, worker = read_step(frame, "float32"), clocks.worker_of(peer)
    if step.batch != worker.asked + 1 or worker.waiting or not step.flags & (PULL | LEAVE):
        raise BadFrameError(f"worker {worker.rank} asks for batch {step.batch} after {worker.asked}")
    worker.asked = step.batch
    worker.arrived = worker.worked = peer.arrived
    worker.waiting = True
    worker.leaving = bool(step.flags & LEAVE)
    worker.service = 0.0
    return worker, step


def let_pull(clocks: WorkerClocks, worker: WorkerClock) -> None:
    """Answer a worker's announcement."""
    worker.waiting = False
    times = Times(0, int((time.perf_counter() - worker.worked) * 1e9), int(worker.service * 1e9))
    clocks.counters[0] += 1
    clocks.counters[2] += times.service
    if worker.peer is not None:
        worker.peer.send(Kind.VALUES, 0, values_head(worker.asked, times))
