"""What does a worker do? Both bodies of a step, to be read whole.

`run_in_steps` asks the shard for the weights of its batch's keys and pushes the gradient back: the step of pace sync.
`run_fused` hands whole pieces to a compiled loop that reads and writes the shared table itself: other paces, embedded.
Both return when there are no rows for this worker until the next leg.
"""

from __future__ import annotations

import math

from paceline.config import OptimizerConfig
from paceline.data.reader import RowReader
from paceline.data.rows import Piece, RowFeed
from paceline.errors import DivergedError
from paceline.kernels.logistic import train_batches, train_rows
from paceline.models.logistic import LogisticScratch
from paceline.optimizers import Rules, rules_at
from paceline.training.pace import Gate
from paceline.training.shard import Push, Shard


class Worker:
    """One worker: its rank, what it works with, and what it has done: `rows`, and the sum of their `losses`."""

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
        self.rows = 0
        self.losses = 0.0

    def warm_up(self) -> None:
        """Load, or on a machine's first run compile, the loops of this worker's step, on no rows."""
        rules, nothing = rules_at(self.settings, 0), self.reader.batch(Piece(0, 0, 0))
        keys = self.scratch.keys(nothing)
        weights = self.scratch.buffers.weights[: len(keys)]
        self.shard.pull(rules, keys, weights)
        self.scratch.gradient(nothing, weights)

    def run_in_steps(self) -> None:
        """Gate, pull, compute, push: one clock after the other."""
        clock = int(self.gate.clocks[self.rank, 0])
        while (piece := self.feed.take(self.rank)) is not None:
            rules = rules_at(self.settings, piece.trained)
            batch = self.reader.batch(piece)
            keys = self.scratch.keys(batch)
            weights = self.scratch.buffers.weights[: len(keys)]
            self.shard.pull(rules, keys, weights)
            sums, losses = self.scratch.gradient(batch, weights)
            self._count(piece, losses)
            self.shard.push(self.rank, clock, rules, Push(keys, sums, batch.num_rows))
            clock += 1
        self.gate.leave(self.rank)

    def run_fused(self) -> None:
        """Draw pieces and train on each in one compiled loop, which stops only where the gate is shut."""
        train = self._train_single_rows if self.batch_size == 1 else self._train_batches
        while (piece := self.feed.take(self.rank)) is not None:
            self._count(piece, train(piece, rules_at(self.settings, piece.trained)))
        self.gate.leave(self.rank)

    def _train_single_rows(self, piece: Piece, rules: Rules) -> float:
        shard, gate = self.shard, self.gate
        private, base = shard.private(self.rank)
        losses, row_count = 0.0, self.rows
        for block, rows in self.reader.in_place(piece):
            done = 0
            while True:
                began = done
                done, more = train_rows(
                    rules.keys, rules.bias, shard.table, shard.bias, block.offsets, block.keys, block.values, block.labels,
                    rows, done, private, base, shard.num_private, row_count, gate.clocks, self.rank, gate.staleness, gate.leads,
                )  # fmt: skip
                losses, row_count = losses + more, row_count + done - began
                if done == len(rows):
                    break
                gate.nap()
        return losses

    def _train_batches(self, piece: Piece, rules: Rules) -> float:
        shard, gate = self.shard, self.gate
        batch = self.reader.batch(piece)
        buffers = self.scratch.room_for(batch.num_nonzeros)
        losses, done = 0.0, 0
        while True:
            done, more = train_batches(
                rules.keys, rules.bias, shard.table, shard.bias, batch.offsets, batch.keys, batch.values, batch.labels,
                done, self.batch_size, buffers, gate.clocks, self.rank, gate.staleness, gate.leads,
            )  # fmt: skip
            losses += more
            if done == batch.num_rows:
                return losses
            gate.nap()

    def _count(self, piece: Piece, losses: float) -> None:
        """Book the rows of a piece and the sum of their losses, which must be a number."""
        self.rows += piece.stop - piece.start
        self.losses += losses
        if not math.isfinite(losses):
            rate = float(rules_at(self.settings, piece.trained).keys.rate)
            raise DivergedError(
                f"the training loss is no longer a number: worker {self.rank}, step {self.feed.clock}, "
                f"row {piece.start:,}, learning rate {rate:g}",
                f"--learning-rate {rate / 10:g}, or --optimizer adagrad; check the data for huge values",
            )
