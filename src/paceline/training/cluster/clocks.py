"""Which worker may continue? A shard's knowledge of all workers: how far each is, and the gate between them.

Gradients that are too large for one frame are announced: in a STEP frame without values. The worker is told to continue
(`Go`), pushes in a way of its own, and gets a VALUES frame without values when it may pull.
"""

from __future__ import annotations

import time

from paceline.processes.messages import encode
from paceline.training.cluster.messages import FromShard, Join, Open, Reset
from paceline.training.cluster.steps import LEAVE, PULL, StepFrame, Times, read_step, values_head
from paceline.wire.frames import BadFrameError, Frame, Kind
from paceline.wire.server import Peer


class WorkerClock:
    """How far one worker is, as a shard sees it. Its batches are numbered from 1."""

    def __init__(self, rank: int, in_flight: int) -> None:
        self.rank = rank
        self.in_flight = in_flight
        self.peer: Peer | None = None
        self.incarnation = -1
        self.applied = 0
        """The last batch whose gradient is in the parameters, or in the sum that will be."""
        self.restart(0, 0)

    def restart(self, base: int, done: int) -> None:
        """Stand after batch `done` at the beginning of a segment whose clocks count from batch `base`."""
        self.base = base
        self.first = done + 1
        self.asked = done
        self.present = True
        self.waiting = self.leaving = False
        self.arrived = self.worked = 0.0
        self.announced: StepFrame | None = None
        """A push that was announced and is not here yet; whether it is under way, how much came, in which time."""
        self.pushing = False
        self.num_taken = 0
        self.service = 0.0
        self.pushed = False
        """Whether its push is in a sum that is not complete."""

    @property
    def clock(self) -> int:
        """Batches finished in this segment."""
        # In plain comparisons: this is asked of every worker in every step.
        done = self.asked - self.in_flight
        if done > self.applied:
            done = self.applied
        return done - self.base if done > self.base else 0

    def has_asked(self, batch: int) -> bool:
        """Whether a batch was asked for, in this segment and not too long ago."""
        return self.first <= batch <= self.asked and batch > self.asked - 2 * self.in_flight


class WorkerClocks:
    """All workers of a run, what they have done, and the gate: `clock - slowest <= staleness`."""

    def __init__(self, num_workers: int, in_flight: int, staleness: int) -> None:
        self.workers = [WorkerClock(rank, in_flight) for rank in range(num_workers)]
        self.num_pushed = 0
        """How many pushes are in the sum that is not complete."""
        self.rows = self.loss_rows = self.largest_lead = self.refused = 0
        self.losses = 0.0
        self.counters = [0, 0, 0]
        """What telemetry reads from another thread: requests answered, nanoseconds in the queue, and of service."""
        self._staleness = staleness
        self._generation = 0

    def reset(self, reset: Reset) -> None:
        """Forget all workers: a generation of the parameters begins."""
        self._check_lengths(reset.applied)
        self._generation = reset.generation
        for worker, applied in zip(self.workers, reset.applied, strict=True):
            if worker.peer is not None:
                worker.peer.close()
                worker.peer = None
            worker.applied = applied
            worker.restart(applied, applied)
        self.rows, self.num_pushed = reset.rows, 0

    def open(self, opened: Open) -> None:
        """A segment begins."""
        self._check_lengths(opened.bases, opened.done)
        for worker, base, done in zip(self.workers, opened.bases, opened.done, strict=True):
            worker.restart(base, done)
        self.losses, self.loss_rows = 0.0, 0

    def _check_lengths(self, *by_worker: list[int]) -> None:
        for numbers in by_worker:
            if len(numbers) != len(self.workers) or min(numbers) < 0:
                raise BadFrameError(f"{numbers} where {len(self.workers)} batches of workers were expected")

    def join(self, peer: Peer, join: Join) -> WorkerClock:
        """Take a worker's connection on, unless a newer process of that worker has joined."""
        if join.generation != self._generation or not 0 <= join.rank < len(self.workers):
            self.refused += 1
            raise BadFrameError(f"worker {join.rank} joins generation {join.generation}, not {self._generation}")
        worker = self.workers[join.rank]
        if join.incarnation < worker.incarnation:
            self.refused += 1
            raise BadFrameError(f"worker {join.rank} has been replaced")
        if worker.peer is not None:
            worker.peer.close()
        worker.incarnation = join.incarnation
        worker.peer = peer
        peer.tag = worker
        return worker

    def worker_of(self, peer: Peer) -> WorkerClock:
        """The worker at the other end of a connection."""
        worker = peer.tag
        if not isinstance(worker, WorkerClock) or worker.peer is not peer:
            raise BadFrameError(f"a step from {peer.address}, which is not a worker now")
        return worker

    def take_announcement(self, peer: Peer, frame: Frame) -> tuple[WorkerClock, StepFrame]:
        """A worker announces a step, and waits for an answer from now on."""
        step, worker = read_step(frame, "float32"), self.worker_of(peer)
        if step.batch != worker.asked + 1 or worker.waiting or not step.flags & (PULL | LEAVE):
            raise BadFrameError(f"worker {worker.rank} asks for batch {step.batch} after {worker.asked}")
        worker.asked = step.batch
        worker.arrived = worker.worked = peer.arrived
        worker.waiting = True
        worker.leaving = bool(step.flags & LEAVE)
        worker.num_taken, worker.service = 0, 0.0
        return worker, step

    def let_pull(self, worker: WorkerClock) -> None:
        """Answer a worker's announcement."""
        worker.waiting = False
        times = Times(0, int((time.perf_counter() - worker.worked) * 1e9), int(worker.service * 1e9))
        self.counters[0] += 1
        self.counters[2] += times.service
        if worker.peer is not None:
            worker.peer.send(Kind.VALUES, 0, values_head(worker.asked, times))

    def book(self, rows: int, losses: float) -> None:
        """Count a gradient that was applied."""
        self.rows += rows
        self.loss_rows += rows
        self.losses += losses

    def add_push(self, worker: WorkerClock) -> bool:
        """A worker's push is in the sum of all workers' pushes; whether that is complete, and the next one begins."""
        worker.pushed = True
        self.num_pushed += 1
        if self.num_pushed < len(self.workers):
            return False
        self.num_pushed = 0
        for other in self.workers:
            other.pushed = False
        return True

    def released(self) -> list[WorkerClock]:
        """The gate: all that wait and are not too far ahead of the slowest. They are to be answered now."""
        slowest = min([worker.clock for worker in self.workers if worker.present], default=0)
        found = []
        for worker in self.workers:
            if not worker.waiting or worker.pushed or worker.announced is not None:
                continue
            if not worker.leaving:
                lead = worker.clock - slowest
                if lead > self._staleness:
                    continue
                if lead > self.largest_lead:
                    self.largest_lead = lead
            found.append(worker)
        return found

    def slowest_ranks(self) -> list[int]:
        """For whom replies are held back: in sync those that have not pushed, else those that are furthest behind."""
        if self.num_pushed:
            return [worker.rank for worker in self.workers if not worker.pushed]
        present = [worker for worker in self.workers if worker.present]
        least = min((worker.clock for worker in present), default=0)
        return [worker.rank for worker in present if worker.clock == least]


def say(peer: Peer, message: FromShard) -> None:
    """Send a message to a peer of a shard."""
    peer.send(Kind.MESSAGE, 0, encode(message))
