"""What does a worker do at every pace but sync, embedded?

It draws pieces of the epoch and hands each to a compiled loop that reads and writes the shared table itself, for many
steps in one call, and checks the gate before each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from paceline.config import RunConfig
from paceline.data.rows import Piece, QueueRows
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.reader import RowReader
from paceline.errors import DivergedError
from paceline.kernels.gate import WAITED
from paceline.kernels.logistic import train_batches, train_rows
from paceline.models.logistic import LogisticScratch
from paceline.parameters.optimizers import Rules, rules_at
from paceline.parameters.table import Shard
from paceline.telemetry.meter import COMPUTE, INPUT, WAIT, WorkerMeter
from paceline.training.pace import Gate


class Worker:
    """One worker: its rank, what it works with, and the `losses` and `rows` it has booked."""

    def __init__(self, rank: int, feed: QueueRows, reader: RowReader, scratch: LogisticScratch, shard: Shard,
                 gate: Gate, config: RunConfig) -> None:  # fmt: skip
        self.rank = rank
        self.feed = feed
        self.reader = reader
        self.scratch = scratch
        self.shard = shard
        self.gate = gate
        self.settings = config.optimizer
        self.batch_size = config.batch_size
        self.losses = 0.0
        self.rows = 0
        self.meter = WorkerMeter(rank)
        self._row_count = 0

    def run(self) -> None:
        """Draw pieces and train on each in one compiled loop, which stops only where the gate is shut."""
        self.meter.restart()
        while (piece := self.feed.take(self.rank)) is not None:
            for part in self._parts_of_one_rate(piece):
                rules = rules_at(self.settings, part.start)
                if self.batch_size == 1:
                    found = list(self.reader.in_place(part.positions))
                    self.meter.mark(INPUT)
                    losses = sum(self._train_rows(block, rows, rules) for block, rows in found)
                else:
                    batch = self.reader.batch(part.positions)
                    self.meter.mark(INPUT)
                    losses = self._train_batches(batch, rules)
                rows = part.stop - part.start
                self.meter.end_step(rows, -(-rows // self.batch_size))
                self.losses += losses
                self.rows += rows
                check_losses(losses, part.start, self.rank, self.feed.clock, float(rules.keys.rate))
        self.meter.pause()
        self.gate.leave(self.rank)

    def _parts_of_one_rate(self, piece: Piece) -> Iterator[Piece]:
        """The piece, or whole batches of it over which a decaying rate falls by less than a hundredth."""
        decay_rows, batch = self.settings.decay_rows, self.batch_size
        start = piece.start
        while start < piece.stop:
            rows = piece.stop - start
            if decay_rows:
                rows = min(
                    rows, max(1, int((decay_rows + start) / (100 * self.settings.decay_power + 1)) // batch) * batch
                )
            yield Piece(start, start + rows)
            start += rows

    def _train_rows(self, block: Batch, rows: NDArray[np.int32], rules: Rules) -> float:
        shard, gate = self.shard, self.gate
        private, base = shard.private(self.rank)
        losses, done = 0.0, 0
        while True:
            waited = gate.leads[self.rank, WAITED]
            now, more = train_rows(
                rules.keys, rules.bias, shard.table, shard.bias, block.offsets, block.keys, block.values, block.labels,
                rows, done, private, base, shard.num_private, self._row_count, gate.clocks, self.rank, gate.staleness,
                gate.spins, gate.leads,
            )  # fmt: skip
            self._meter_loop(waited)
            self._row_count += now - done
            losses, done = losses + more, now
            if done == len(rows):
                return losses
            gate.nap()
            self.meter.mark(WAIT)

    def _train_batches(self, batch: Batch, rules: Rules) -> float:
        shard, gate = self.shard, self.gate
        ends = np.append(batch.offsets[:: self.batch_size], batch.offsets[-1])
        buffers = self.scratch.room_for(int(np.diff(ends).max()))
        losses, done = 0.0, 0
        while True:
            waited = gate.leads[self.rank, WAITED]
            done, more = train_batches(
                rules.keys, rules.bias, shard.table, shard.bias, batch.offsets, batch.keys, batch.values, batch.labels,
                done, self.batch_size, buffers, gate.clocks, self.rank, gate.staleness, gate.spins, gate.leads,
            )  # fmt: skip
            self._meter_loop(waited)
            losses += more
            if done == batch.num_rows:
                return losses
            gate.nap()
            self.meter.mark(WAIT)

    def _meter_loop(self, waited: int) -> None:
        """A compiled loop is done, before which the gate had held this worker up for `waited` nanoseconds."""
        self.meter.mark(COMPUTE)
        self.meter.waited_within(COMPUTE, int(self.gate.leads[self.rank, WAITED] - waited))

    def warm_up(self) -> None:
        """Load, or on a machine's first run compile, the loops that this worker will use; changes nothing."""
        rules, first_row = rules_at(self.settings, 0), np.zeros(1, np.int64)
        if self.batch_size == 1:
            block, rows = next(self.reader.in_place(first_row))
            self._train_rows(block, rows[:0], rules)
        else:
            self._train_batches(self.reader.batch(first_row).slice(0, 0), rules)


def check_losses(losses: float, position: int, rank: int, clock: int, rate: float) -> None:
    """Raise unless a sum of losses is a number."""
    if not math.isfinite(losses):
        raise DivergedError(
            f"the loss is no longer a number: worker {rank}, by step {clock}, in the rows from {position:,} on, "
            f"learning rate {rate:g}",
            f"--learning-rate {rate / 10:g}, or --optimizer adagrad; check the data for huge values",
        )
