"""What does a thread do in a run? One loop, whatever the model and the pace.

It draws rows, reads them, and lets `steps.advance` train on them. That is one call into a compiled loop for many steps,
or one step in Python. The call returns early if the gate stays shut: the loop looks around and calls again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from paceline.data.rows import ClockRows, Clocks, Piece, QueueRows, RowFeed
from paceline.kernels.gate import READ, WAITED
from paceline.settings import OptimizerConfig, RunConfig
from paceline.telemetry.meter import COMPUTE, INPUT, WAIT, WorkerMeter
from paceline.training.checks import check_losses
from paceline.training.pace import Gate

# What a thread draws: a piece of the epoch for one worker or, in sync, the clocks of some workers.
Work = TypeVar("Work")
Readable = TypeVar("Readable", contravariant=True)


class Steps(Protocol[Readable]):
    """The steps that one thread takes."""

    most: int
    """Batches, or clocks, that one piece of work may have."""

    def warm_up(self) -> None:
        """Load, or on a machine's first run compile, the loops; changes nothing."""

    def read(self, work: Readable) -> None:
        """Get the rows of a piece of work."""

    def advance(self) -> tuple[bool, Any]:
        """Train on what was read, until it is done or the gate is shut: whether it is done, and the sum of the losses
        since the last call.
        """


class Drawn(NamedTuple, Generic[Work]):
    """A piece of work: how much it is, and how many rows were handed out before it."""

    work: Work
    num_rows: int
    num_clocks: int
    trained: int


def draw_pieces(feed: QueueRows, rank: int, most: int, config: RunConfig) -> Iterator[Drawn[Piece]]:
    """Pieces of the epoch for one worker; if the rate decays, parts of them over which it falls by less than 1 %."""
    settings, batch = config.optimizer, config.batch_size
    while (piece := feed.take(rank, most)) is not None:
        start = piece.start
        while start < piece.stop:
            rows = piece.stop - start
            if settings.decay_rows:
                alike = int((settings.decay_rows + start) / (100 * settings.decay_power + 1))
                rows = min(rows, max(1, alike // batch) * batch)
            yield Drawn(Piece(start, start + rows), rows, -(-rows // batch), start)
            start += rows


def draw_clocks(feed: ClockRows, ranks: list[int], most: int) -> Iterator[Drawn[Clocks]]:
    """Clocks of some workers, in sync."""
    while (clocks := feed.take(ranks, most)) is not None:
        yield Drawn(clocks, clocks.rows_of(ranks), clocks.num_clocks, clocks.start)


@dataclass
class StepLoop(Generic[Work]):
    """One thread: one worker or, in sync, several, which it takes through every clock.

    In sync, the result does not depend on which thread computes a worker's part, so workers beyond the cores share
    threads. `waits` is where the steps note how long they waited and read, and `leave` tells the others not to wait for
    these workers.
    """

    ranks: list[int]
    feed: RowFeed
    draw: Callable[[], Iterator[Drawn[Work]]]
    steps: Steps[Work]
    gate: Gate
    waits: NDArray[np.int64]
    settings: OptimizerConfig
    leave: Callable[[], None]

    def __post_init__(self) -> None:
        self.losses: Any = 0.0
        self.rows = 0
        self.meter = WorkerMeter(self.ranks[0], sharing=self.ranks)

    def run(self) -> None:
        """Train until there are no rows before the next stop."""
        self.meter.restart()
        for drawn in self.draw():
            self.train(drawn)
        self.meter.pause()
        self.leave()

    def train(self, drawn: Drawn[Work]) -> None:
        """Train on a piece of work."""
        meter, losses = self.meter, 0.0
        self.steps.read(drawn.work)
        meter.mark(INPUT)
        while True:
            waited, read = self.waits[WAITED], self.waits[READ]
            done, more = self.steps.advance()
            meter.mark(COMPUTE)
            meter.move(int(self.waits[WAITED] - waited), COMPUTE, WAIT)
            meter.move(int(self.waits[READ] - read), COMPUTE, INPUT)
            losses += more
            if done:
                break
            self.gate.check()
            meter.mark(WAIT)
        meter.end_step(drawn.num_rows, drawn.num_clocks)
        self.losses += losses
        self.rows += drawn.num_rows
        check_losses(losses, drawn.trained, self.ranks[0], self.feed.clock, self.settings.rate_after(drawn.trained))
