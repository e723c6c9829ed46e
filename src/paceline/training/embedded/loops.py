"""What does a thread do in a run? Two loops, one per fold, whatever the model.

Both draw rows, read them, and let `steps.advance` train on them. That is one call into a compiled loop for many steps,
or one step in Python, and it comes back early when the gate is shut: the loop then naps and calls again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from paceline.data.rows import ClockRows, Clocks, Piece, QueueRows
from paceline.kernels.gate import WAITED
from paceline.kernels.steps import AT_GATE
from paceline.parameters.optimizers.rates import rate_at
from paceline.settings import RunConfig
from paceline.telemetry.meter import COMPUTE, INPUT, WAIT, WorkerMeter
from paceline.training.losses import check_losses
from paceline.training.pace import Gate


class FreeSteps(Protocol):
    """Steps of one worker whose gradients are applied as they arrive."""

    most_batches: int
    """Batches that one call of `advance` can take; 0 for as many as a piece has."""

    def warm_up(self) -> None:
        """Load, or on a machine's first run compile, the loops; changes nothing."""

    def read(self, piece: Piece) -> None:
        """Get the rows of a piece."""

    def advance(self, done: int) -> tuple[int, Any]:
        """Train on the piece from row `done` on; how many rows are done now, and the sum of the losses."""


class ClockSteps(Protocol):
    """Steps of the workers of one thread in sync."""

    most_clocks: int
    """Clocks that one call of `advance` can take."""

    def warm_up(self) -> None:
        """Load, or on a machine's first run compile, the loops; changes nothing."""

    def read(self, clocks: Clocks) -> None:
        """Get the rows of some clocks."""

    def advance(self, done: int, phase: int) -> tuple[int, int, Any]:
        """Train from clock `done` on, which is in this phase; the same for the next one, and the sum of the losses."""


class FreeLoop:
    """One worker at every pace but sync."""

    def __init__(self, rank: int, feed: QueueRows, steps: FreeSteps, gate: Gate, config: RunConfig) -> None:
        self.losses: Any = 0.0
        self.rows = 0
        self.meter = WorkerMeter(rank)
        self._rank = rank
        self._feed = feed
        self._steps = steps
        self._gate = gate
        self._settings = config.optimizer
        self._batch_size = config.batch_size

    def run(self) -> None:
        """Train until there are no rows before the next stop."""
        self.meter.restart()
        while (piece := self._feed.take(self._rank, self._steps.most_batches)) is not None:
            for part in self._parts_of_one_rate(piece):
                self._train(part)
        self.meter.pause()
        self._gate.leave(self._rank)

    def warm_up(self) -> None:
        """Load or compile the loops; changes nothing."""
        self._steps.warm_up()

    def _train(self, piece: Piece) -> None:
        waits, losses, done, rows = self._gate.leads, 0.0, 0, piece.stop - piece.start
        self._steps.read(piece)
        self.meter.mark(INPUT)
        while True:
            waited = waits[self._rank, WAITED]
            done, more = self._steps.advance(done)
            self.meter.mark(COMPUTE)
            self.meter.waited_within(COMPUTE, int(waits[self._rank, WAITED] - waited))
            losses += more
            if done == rows:
                break
            self._gate.nap()
            self.meter.mark(WAIT)
        self.meter.end_step(rows, -(-rows // self._batch_size))
        self.losses += losses
        self.rows += rows
        check_losses(losses, piece.start, self._rank, self._feed.clock, rate_at(self._settings, piece.start))

    def _parts_of_one_rate(self, piece: Piece) -> Iterator[Piece]:
        """The piece, or whole batches of it over which a decaying rate falls by less than a hundredth."""
        decay_rows, batch = self._settings.decay_rows, self._batch_size
        start = piece.start
        while start < piece.stop:
            rows = piece.stop - start
            if decay_rows:
                rows = min(
                    rows, max(1, int((decay_rows + start) / (100 * self._settings.decay_power + 1)) // batch) * batch
                )
            yield Piece(start, start + rows)
            start += rows


class ClockLoop:
    """One thread in sync: it takes its workers through every clock, in step with the other threads.

    A clock of sync is the same whichever thread computes it, so workers beyond the cores share threads.
    """

    def __init__(self, part: int, ranks: list[int], feed: ClockRows, steps: ClockSteps, gate: Gate, waits: Any,
                 config: RunConfig) -> None:  # fmt: skip
        """`waits` is where the steps of part `part` note how long they waited."""
        self.losses: Any = 0.0
        self.rows = 0
        self.meter = WorkerMeter(ranks[0], sharing=ranks)
        self._part = part
        self._ranks = ranks
        self._feed = feed
        self._steps = steps
        self._gate = gate
        self._waits = waits
        self._settings = config.optimizer

    def run(self) -> None:
        """Train until there are no rows before the next stop."""
        self.meter.restart()
        while (clocks := self._feed.take(self._ranks, self._steps.most_clocks)) is not None:
            self._train(clocks)
        self.meter.pause()
        for rank in self._ranks:
            self._gate.leave(rank)

    def warm_up(self) -> None:
        """Load or compile the loops; changes nothing."""
        self._steps.warm_up()

    def _train(self, clocks: Clocks) -> None:
        num_clocks = (len(clocks.starts) - 1) // len(self._ranks)
        losses, done, phase = 0.0, 0, AT_GATE
        self._steps.read(clocks)
        self.meter.mark(INPUT)
        while True:
            waited = self._waits[self._part, WAITED]
            done, phase, more = self._steps.advance(done, phase)
            self.meter.mark(COMPUTE)
            self.meter.waited_within(COMPUTE, int(self._waits[self._part, WAITED] - waited))
            losses += more
            if done == num_clocks:
                break
            self._gate.nap()
            self.meter.mark(WAIT)
        self.meter.end_step(len(clocks.positions), num_clocks)
        self.losses += losses
        self.rows += len(clocks.positions)
        rate = rate_at(self._settings, clocks.trained)
        check_losses(losses, clocks.trained, self._ranks[0], self._feed.clock, rate)
