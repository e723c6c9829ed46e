"""Which worker may continue? A shard's knowledge of all workers: how far each is, and the gate between them.

Gradients that are too large for one frame are announced: in a STEP frame without values. The worker is told to continue
(`Go`), pushes in a way of its own, and gets a VALUES frame without values when it may pull.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

import numpy as np

from paceline.kernels import clocks as numbers
from paceline.kernels.clocks import ClockArrays, clock_of, let_through
from paceline.processes.messages import encode
from paceline.training.cluster.messages import FromShard, Join, Open, Reset
from paceline.training.cluster.steps import LEAVE, PULL, StepFrame, Times, read_step, values_head
from paceline.wire.frames import BadFrameError, Frame, Kind
from paceline.wire.server import Peer

T = TypeVar("T", int, bool)
LARGEST = 1 << 62
"""The largest number of a batch or of rows: clocks are kept in 64 bits."""


class SharedNumber(Generic[T]):
    """An attribute that lies in an array, `numbers` of its owner, where compiled loops read and write it too."""

    def __init__(self, at: int, kind: Callable[[int], T]) -> None:
        self._at = at
        self._kind: Callable[[int], T] = kind

    @overload
    def __get__(self, owner: None, _: Any) -> SharedNumber[T]: ...
    @overload
    def __get__(self, owner: Any, _: Any) -> T: ...
    def __get__(self, owner: Any, _: Any) -> T | SharedNumber[T]:
        return self if owner is None else self._kind(owner.numbers[self._at])

    def __set__(self, owner: Any, value: T) -> None:
        owner.numbers[self._at] = value


class WorkerClock:
    """How far one worker is, as a shard sees it. Its batches are numbered from 1; moments are in nanoseconds."""

    base = SharedNumber(numbers.BASE, int)
    first = SharedNumber(numbers.FIRST, int)
    asked = SharedNumber(numbers.ASKED, int)
    applied = SharedNumber(numbers.APPLIED, int)
    """The last batch whose gradient is in the parameters, or in the sum that will be."""
    present = SharedNumber(numbers.PRESENT, bool)
    waiting = SharedNumber(numbers.WAITING, bool)
    leaving = SharedNumber(numbers.LEAVING, bool)
    pushed = SharedNumber(numbers.PUSHED, bool)
    """Whether its push is in a sum that is not complete."""
    arrived = SharedNumber(numbers.ARRIVED, int)
    worked = SharedNumber(numbers.WORKED, int)
    has_announced = SharedNumber(numbers.ANNOUNCED, bool)

    def __init__(self, rank: int, arrays: ClockArrays) -> None:
        self.rank = rank
        self.in_flight = arrays.in_flight
        self._arrays = arrays
        self.numbers = memoryview(arrays.workers[rank])
        self.peer: Peer | None = None
        self.incarnation = -1
        self.restart(0, 0)

    def restart(self, base: int, done: int) -> None:
        """Stand after batch `done` at the beginning of a segment whose clocks count from batch `base`."""
        self.base = base
        self.first = done + 1
        self.asked = done
        self.present = True
        self.waiting = self.leaving = False
        self.arrived = self.worked = 0
        self.announced = None
        """A push that was announced and is not here yet; whether it is under way, how much came, in which time."""
        self.pushing = False
        self.num_taken = 0
        self.service = 0.0
        self.pushed = False

    @property
    def announced(self) -> StepFrame | None:
        return self._announced

    @announced.setter
    def announced(self, step: StepFrame | None) -> None:
        self._announced, self.has_announced = step, step is not None

    @property
    def clock(self) -> int:
        """Batches finished in this segment."""
        return int(clock_of(self._arrays, self.rank))

    def has_asked(self, batch: int) -> bool:
        """Whether a batch was asked for, in this segment and not too long ago."""
        return self.first <= batch <= self.asked and batch > self.asked - 2 * self.in_flight


class WorkerClocks:
    """All workers of a run, what they have done, and the gate: `clock - slowest <= staleness`."""

    num_pushed = SharedNumber(numbers.NUM_PUSHED, int)
    """How many pushes are in the sum that is not complete."""
    rows = SharedNumber(numbers.ROWS, int)
    loss_rows = SharedNumber(numbers.LOSS_ROWS, int)
    largest_lead = SharedNumber(numbers.LARGEST_LEAD, int)

    def __init__(self, num_workers: int, in_flight: int, staleness: int) -> None:
        self.arrays = ClockArrays.make(num_workers, in_flight, staleness)
        self.numbers = memoryview(self.arrays.totals)  # type: ignore[arg-type]  # arrays are buffers
        self.workers = [WorkerClock(rank, self.arrays) for rank in range(num_workers)]
        self.refused = 0
        self._released = np.zeros(num_workers, np.int64)
        self._generation = 0

    @property
    def losses(self) -> float:
        return self.arrays.losses.item()

    @property
    def counters(self) -> tuple[int, int, int]:
        """What telemetry reads from another thread: requests answered, nanoseconds in the queue, and of service."""
        return self.numbers[numbers.REQUESTS], self.numbers[numbers.QUEUE], self.numbers[numbers.SERVICE]

    @property
    def spun(self) -> int:
        """Nanoseconds of processor time that the compiled loop has spun for frames."""
        return self.numbers[numbers.SPUN]

    def reset(self, reset: Reset) -> None:
        """Forget all workers: a generation of the parameters begins."""
        self._check_lengths(reset.applied)
        if not 0 <= reset.rows <= LARGEST:
            raise BadFrameError(f"{reset.rows} rows")
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
        self.arrays.losses[0], self.loss_rows, self.num_pushed = 0.0, 0, 0

    def _check_lengths(self, *by_worker: list[int]) -> None:
        for batches in by_worker:
            if len(batches) != len(self.workers) or min(batches) < 0 or max(batches) > LARGEST:
                raise BadFrameError(f"{batches} where {len(self.workers)} batches of workers were expected")

    def join(self, peer: Peer, join: Join) -> WorkerClock:
        """Accept a worker's connection, unless a newer process of that worker has joined."""
        if join.generation != self._generation or not 0 <= join.rank < len(self.workers):
            self.refused += 1
            raise BadFrameError(f"worker {join.rank} joins generation {join.generation}, not {self._generation}")
        worker = self.workers[join.rank]
        if join.incarnation < worker.incarnation:
            self.refused += 1
            raise BadFrameError(f"worker {join.rank} has been replaced")
        if peer.tag is not None:
            self.refused += 1
            raise BadFrameError(f"worker {join.rank} joins over a connection of worker {peer.tag.rank}")
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
        times = Times(0, time.perf_counter_ns() - worker.worked, int(worker.service * 1e9))
        self.count(times)
        if worker.peer is not None:
            worker.peer.send(Kind.VALUES, 0, values_head(worker.asked, times))

    def count(self, times: Times) -> None:
        """Count a request that is answered."""
        self.numbers[numbers.REQUESTS] += 1
        self.numbers[numbers.QUEUE] += times.queue
        self.numbers[numbers.SERVICE] += times.service

    def book(self, rows: int, losses: float) -> None:
        """Count a gradient that was applied."""
        self.rows += rows
        self.loss_rows += rows
        self.arrays.losses[0] += losses

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
        count = let_through(self.arrays, self._released)
        return [self.workers[rank] for rank in self._released[:count].tolist()]

    def slowest_ranks(self) -> list[int]:
        """For whom replies are held back: in sync those that have not pushed, else those that are furthest behind."""
        if self.num_pushed:
            return [worker.rank for worker in self.workers if not worker.pushed]
        clocks = {worker.rank: worker.clock for worker in self.workers if worker.present}
        least = min(clocks.values(), default=0)
        return [rank for rank, clock in clocks.items() if clock == least]


def say(peer: Peer, message: FromShard) -> None:
    """Send a message to a peer of a shard."""
    peer.send(Kind.MESSAGE, 0, encode(message))
