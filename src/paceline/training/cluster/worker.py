"""What does a worker of a cluster do? The step loop of all models.

A worker takes rows, reads ahead, pulls, computes and pushes. What is pulled and pushed, and how, is an exchange's:
`keyed_exchange.py` (tables), `piece_exchange.py` (dense values) or `allreduce_exchange.py` (dense values that workers
add up among themselves). While frames travel, the next batch is read and its keys are numbered.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from paceline.data.blocks.reader import Reader
from paceline.models.model import Compute, Model
from paceline.settings import RunConfig
from paceline.telemetry.meter import COMPUTE, INPUT, WAIT, WorkerMeter
from paceline.training.checks import check_losses
from paceline.training.cluster.batch_queue import BatchQueue, RecalledError
from paceline.training.cluster.links import Links
from paceline.training.cluster.messages import Begin, Idle, RoleSpec, Stop, Wait
from paceline.training.cluster.steps import LEAVE, PULL, PUSH
from paceline.wire.frames import WireError

if TYPE_CHECKING:
    from paceline.processes.lifeline import Lifeline


class WorkerBatch(Protocol):
    """One batch of a worker: rows, what they need of the parameters, and their gradient."""

    number: int
    trained: int
    rows: Any

    def read(self, now: Callable[[], int], number: int, start: int, stop: int, trained: int) -> int:
        """Fill in batch `number`, the rows at positions `start` to `stop`, and find out which parameters they need;
        `trained` rows were handed out before. Returns `now()` as soon as the rows are read.
        """

    def gradient(self) -> float:
        """Compute the gradient from what was pulled; the sum of the losses."""


class WorkerExchange(Protocol):
    """What a worker pulls and pushes, and how."""

    batches: Sequence[Any]
    """Room for the batches in flight and one ahead."""
    links: Links
    """The connections to shards."""

    def warm_up(self) -> None:
        """Load or compile the loops; changes nothing."""

    def join(self, begin: Begin) -> int:
        """Connect to the shards; the batch to continue with."""

    def ask(self, number: int, flags: int, done: Any, losses: float, ahead: Any) -> Sequence[tuple[int, int]]:
        """Push the gradient of the batch that is done, if any, and ask for what the one ahead needs, if any.

        Returns its phases and when each of them ended, for the meter, if it did more than push.
        """

    def receive(self, batch: Any) -> int:
        """Wait for what a batch needs; for how many nanoseconds of that the gate was closed."""

    def lost(self, error: WireError) -> None:
        """A connection is lost that the exchange does not mend by itself; returns if the worker may begin again."""


class Setup(NamedTuple):
    """What a worker is made of: the settings, its part of the model, a reader for each batch in flight and one ahead,
    and how to talk to the coordinator. The data have `num_rows` rows; `host` is this node's address.
    """

    spec: RoleSpec
    config: RunConfig
    model: Model
    compute: Compute
    readers: list[Reader[Any]]
    num_rows: int
    queue: BatchQueue
    lifeline: Lifeline
    meter: WorkerMeter
    host: str


class Worker:
    """One worker: its rows, its exchange with the shards, and its batches, those in flight and one ahead."""

    def __init__(self, setup: Setup, exchange: WorkerExchange) -> None:
        self._setup = setup
        self._exchange = exchange
        self._queue = setup.queue
        self._lifeline = setup.lifeline
        self._in_flight = len(exchange.batches) - 1
        self._doing = "waits for the coordinator"
        self._generation = 0
        self._read_at = 0
        self.meter = setup.meter
        self.meter.num_bytes = lambda: exchange.links.traffic[:2]
        self.meter.spun = lambda: exchange.links.traffic.spun

    def status(self) -> tuple[str, int, int]:
        """What this worker does, and the bytes that it sent to shards and received from them."""
        links = self._exchange.links
        sent, received, _ = links.traffic
        return links.doing or self._doing, sent, received

    def run(self) -> None:
        """Train segment after segment until told to stop."""
        while True:
            self._doing = "waits for the coordinator"
            order = self._lifeline.orders.get()
            if isinstance(order, Stop):
                return
            if isinstance(order, Wait):
                continue
            try:
                self._train_segment(order)
            except (RecalledError, WireError) as error:
                # In the middle of a step: the shards know where to continue.
                if isinstance(error, WireError):
                    self._exchange.lost(error)
                self._generation = 0
                continue
            self._lifeline.beat()
            self._lifeline.report()
            self._lifeline.say(Idle(segment=order.segment))

    def _train_segment(self, begin: Begin) -> None:
        """Train on all rows that the coordinator hands out before the next stop."""
        if begin.generation != self._generation:
            self._queue.next = self._exchange.join(begin)
            self._generation = begin.generation
        self.meter.restart()
        self._queue.begin(begin.segment)
        number, ahead = self._queue.next, self._read_next()
        self._mark_read()
        if ahead is None:
            self._exchange.ask(number, LEAVE, None, 0.0, None)
        else:
            number = self._train(number, ahead)
        # All shards have what was pushed last once they have answered the last frame.
        for link in self._exchange.links.all:
            link.receive(number)
        self.meter.mark(WAIT)

    def _train(self, number: int, ahead: WorkerBatch | None) -> int:
        """Ask for batches from `number` on, the first being `ahead`, to the last one; the number of the last frame."""
        exchange, meter = self._exchange, self.meter
        # What the frames in flight asked for; None when all batches have been: further frames only push.
        flying: deque[WorkerBatch | None] = deque()
        while len(flying) < self._in_flight:
            exchange.ask(number + len(flying), PULL, None, 0.0, ahead)
            flying.append(ahead)
            ahead = self._read_next()
            self._mark_read()
        number += self._in_flight - 1
        links = exchange.links.all
        moved_before = [link.moved for link in links]
        while (current := flying.popleft()) is not None:
            waited = exchange.receive(current)
            self._doing = "computes"
            received = meter.now()
            losses = current.gradient()
            if not math.isfinite(losses):
                rate = self._setup.config.optimizer.rate_after(current.trained)
                check_losses(losses, current.trained, self._setup.spec.rank, current.number, rate)
            computed = meter.now()
            number += 1
            last = ahead is None and not any(flying)
            marks = exchange.ask(number, PUSH | (LEAVE if last else PULL), current, losses, ahead)
            flying.append(ahead)
            pushed = meter.now()
            # While the frames travel.
            ahead = self._read_next()
            sizes: Sequence[tuple[int, int]] = ()
            if meter.sampling:
                moved = [link.moved for link in links]
                sizes = [(now[0] - old[0], now[1] - old[1]) for old, now in zip(moved_before, moved, strict=True)]
            meter.end_exchange(
                current.rows.num_rows, received, computed, marks, pushed, self._read_at, meter.now(), waited, sizes
            )
            if meter.sampling:
                # The next step is sampled.
                moved_before = [link.moved for link in links]
        return number

    def _read_next(self) -> WorkerBatch | None:
        """The next batch, read; None when there are no more rows in this segment."""
        queue = self._queue
        number = queue.next
        if not queue.at_hand():
            self._doing = "waits for rows from the coordinator"
        if (rows := queue.take()) is None:
            self._read_at = self.meter.now()
            return None
        self._doing = "reads"
        batches = self._exchange.batches
        batch: WorkerBatch = batches[number % len(batches)]
        self._read_at = batch.read(self.meter.now, number, *rows)
        return batch

    def _mark_read(self) -> None:
        """Count what was just read where no step has begun."""
        self.meter.mark_at(INPUT, self._read_at)
        self.meter.mark(COMPUTE)
