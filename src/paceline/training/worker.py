"""What does a worker do? Both bodies of a step, to be read whole.

`run_in_steps` is pace sync: compute on the batch, push the gradient, update together. `Worker.run_fused` is every other
pace, embedded: it hands whole pieces to a compiled loop that reads and writes the shared table itself. Both return
when there are no rows until the next leg.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from paceline.config import OptimizerConfig
from paceline.data.batch import Batch
from paceline.data.reader import RowReader
from paceline.data.rows import Piece, RowFeed
from paceline.errors import DivergedError
from paceline.kernels.logistic import compute_step, train_batches, train_rows
from paceline.models.logistic import LogisticScratch
from paceline.optimizers import Rules, rules_at
from paceline.training.pace import Gate
from paceline.training.shard import Push, Shard


def run_in_steps(workers: list[Worker], part: int) -> None:
    """Pace sync for the workers of one thread, which takes this part of every update.

    A clock of lock-step is the same whoever computes it, so workers beyond the cores share threads.
    """
    shard, gate = workers[0].shard, workers[0].gate
    clock = int(gate.clocks[workers[0].rank, 0])
    while None not in (pieces := [worker.step(clock) for worker in workers]):
        shard.update(part, clock, rules_at(shard.settings, pieces[0].trained))  # type: ignore[union-attr]
        clock += 1
        for worker in workers:
            gate.clocks[worker.rank, 0] = clock
    for worker in workers:
        gate.leave(worker.rank)


class Worker:
    """One worker: its rank, what it works with, and the sum of `losses` that it has booked."""

    def __init__(
        self,
        rank: int,
        feed: RowFeed,
        reader: RowReader,
        scratch: LogisticScratch,
        shard: Shard,
        gate: Gate,
        settings: OptimizerConfig,
        batch_size: int,
    ) -> None:
        self.rank = rank
        self.feed = feed
        self.reader = reader
        self.scratch = scratch
        self.shard = shard
        self.gate = gate
        self.settings = settings
        self.batch_size = batch_size
        self.losses = 0.0
        self._row_count = 0

    def step(self, clock: int) -> Piece | None:
        """One clock of pace sync but for the update: wait at the gate, pull, compute, push. None: out of rows."""
        piece = self.feed.take(self.rank)
        if piece is None:
            return None
        batch = self.reader.batch(piece)
        self.gate.wait(self.gate.clocks, clock, self.gate.staleness)
        push, losses = self._compute(batch, rules_at(self.settings, piece.trained))
        self.shard.push(self.rank, push)
        self._count(piece, losses)
        return piece

    def _compute(self, batch: Batch, rules: Rules) -> tuple[Push, float]:
        """The gradient of a batch on the table's weights as they are, and the sum of its losses."""
        buffers = self.scratch.room_for(batch.num_nonzeros)
        count, losses = compute_step(
            rules.keys,
            self.shard.table,
            self.shard.bias,
            batch.offsets,
            batch.keys,
            batch.values,
            batch.labels,
            buffers,
        )
        return Push(buffers.distinct[:count], buffers.sums[:count], batch.num_rows), losses

    def run_fused(self) -> None:
        """Draw pieces and train on each in one compiled loop, which stops only where the gate is shut."""
        while (piece := self.feed.take(self.rank)) is not None:
            rules = rules_at(self.settings, piece.trained)
            if self.batch_size == 1:
                losses = sum(self._train_rows(block, rows, rules) for block, rows in self.reader.in_place(piece))
            else:
                losses = self._train_batches(self.reader.batch(piece), rules)
            self._count(piece, losses)
        self.gate.leave(self.rank)

    def _train_rows(self, block: Batch, rows: NDArray[np.int32], rules: Rules) -> float:
        shard, gate = self.shard, self.gate
        private, base = shard.private(self.rank)
        losses, done = 0.0, 0
        while True:
            now, more = train_rows(
                rules.keys, rules.bias, shard.table, shard.bias, block.offsets, block.keys, block.values, block.labels,
                rows, done, private, base, shard.num_private, self._row_count, gate.clocks, self.rank, gate.staleness,
                gate.spins, gate.leads,
            )  # fmt: skip
            self._row_count += now - done
            losses, done = losses + more, now
            if done == len(rows):
                return losses
            gate.nap()

    def _train_batches(self, batch: Batch, rules: Rules) -> float:
        shard, gate = self.shard, self.gate
        buffers = self.scratch.room_for(batch.num_nonzeros)
        losses, done = 0.0, 0
        while True:
            done, more = train_batches(
                rules.keys, rules.bias, shard.table, shard.bias, batch.offsets, batch.keys, batch.values, batch.labels,
                done, self.batch_size, buffers, gate.clocks, self.rank, gate.staleness, gate.spins, gate.leads,
            )  # fmt: skip
            losses += more
            if done == batch.num_rows:
                return losses
            gate.nap()

    def warm_up(self, fold: str) -> None:
        """Load, or on a machine's first run compile, the loops that this worker will use; changes nothing."""
        rules, first_row = rules_at(self.settings, 0), Piece(0, 1, 0)
        block, rows = next(self.reader.in_place(first_row))
        batch = self.reader.batch(first_row)
        if fold == "mean":
            self._compute(batch, rules)
            self.shard.warm_up(rules)
        elif self.batch_size == 1:
            self._train_rows(block, rows[:0], rules)
        else:
            self._train_batches(batch.slice(0, 0), rules)

    def _count(self, piece: Piece, losses: float) -> None:
        """Book the sum of a piece's losses, which must be a number."""
        self.losses += losses
        if not math.isfinite(losses):
            rate = float(rules_at(self.settings, piece.trained).keys.rate)
            raise DivergedError(
                f"the training loss is no longer a number: worker {self.rank}, step {self.feed.clock}, "
                f"row {piece.start:,}, learning rate {rate:g}",
                f"--learning-rate {rate / 10:g}, or --optimizer adagrad; check the data for huge values",
            )
