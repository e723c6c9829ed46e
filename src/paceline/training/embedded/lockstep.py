"""What does a thread do at pace sync? It takes its workers through every clock, in step with the other threads.

A clock of lock-step is the same whoever computes it, so workers beyond the cores share threads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.config import RunConfig
from paceline.data.rows import ClockRows, Clocks
from paceline.data.sparse.reader import RowReader
from paceline.kernels.gate import LINE, WAITED
from paceline.kernels.lockstep import AT_GATE, OUT_OF_ROOM, train_clocks
from paceline.models.logistic import MOST_KEYS, Fold, LogisticScratch
from paceline.parameters.optimizers import rules_at
from paceline.parameters.table import Shard
from paceline.telemetry.meter import COMPUTE, INPUT, WAIT, WorkerMeter
from paceline.training.embedded.worker import check_losses
from paceline.training.pace import Gate

ROWS_A_CALL = 4_096


class Pushes(NamedTuple):
    """Every worker's gradient of the clock, by rank: distinct keys, the sums over its rows, and how many of each.

    Memory is set aside for the longest rows there are, but only what is written to is ever used.
    """

    keys: NDArray[Any]
    sums: NDArray[np.float32]
    counts: NDArray[np.int64]
    rows: NDArray[np.int64]

    @staticmethod
    def make(num_workers: int, batch_nonzeros: int, key_dtype: np.dtype[Any]) -> Pushes:
        size = min(batch_nonzeros, MOST_KEYS) + 1
        return Pushes(
            np.empty((num_workers, size), key_dtype),
            np.empty((num_workers, size), np.float32),
            np.zeros((num_workers, LINE), np.int64),
            np.zeros((num_workers, LINE), np.int64),
        )


class LockstepThread:
    """One thread of pace sync: its workers' `ranks`, its `part` of every fold, its `losses` and `rows` so far."""

    def __init__(self, part: int, ranks: list[int], feed: ClockRows, reader: RowReader, scratch: LogisticScratch,
                 shard: Shard, gate: Gate, config: RunConfig, pushes: Pushes,
                 handed_in: NDArray[np.int64]) -> None:  # fmt: skip
        self.losses = 0.0
        self.rows = 0
        self.meter = WorkerMeter(ranks[0], sharing=ranks)
        self._part = part
        self._ranks = ranks
        self._feed = feed
        self._reader = reader
        self._scratch = scratch
        self._shard = shard
        self._gate = gate
        self._pushes = pushes
        self._handed_in = handed_in
        self._settings = config.optimizer
        self._fold = self._make_fold(256)
        # A rate that decays changes with every clock; otherwise one call takes many small clocks.
        self._clocks_a_call = (
            1 if config.optimizer.decay_rows else max(1, ROWS_A_CALL // (len(ranks) * config.batch_size))
        )

    def run(self) -> None:
        """Train until there are no rows before the next stop."""
        self.meter.restart()
        while (clocks := self._feed.take(self._ranks, self._clocks_a_call)) is not None:
            self._train(clocks)
            self.meter.end_step(len(clocks.positions), (len(clocks.starts) - 1) // len(self._ranks))
        self.meter.pause()
        for rank in self._ranks:
            self._gate.leave(rank)

    def warm_up(self) -> None:
        """Load, or on a machine's first run compile, the loops; changes nothing."""
        self._reader.batch(np.zeros(1, np.int64))
        self._train(Clocks(np.zeros(0, np.int64), np.zeros(1, np.int64), 0))

    def _train(self, clocks: Clocks) -> None:
        """Run clocks in a compiled loop, which comes back only to wait longer or for more room."""
        shard, gate = self._shard, self._gate
        rules = rules_at(self._settings, clocks.trained)
        batch = self._reader.batch(clocks.positions)
        self.meter.mark(INPUT)
        buffers = self._scratch.room_for(int(np.diff(batch.offsets[clocks.starts]).max(initial=0)))
        done, phase, losses = 0, AT_GATE, 0.0
        while True:
            waited = self._handed_in[self._part, WAITED]
            done, phase, more = train_clocks(
                rules.keys, rules.bias, shard.table, shard.bias, batch.offsets, batch.keys, batch.values, batch.labels,
                clocks.starts, np.array(self._ranks), buffers, self._pushes, self._fold, self._part, done, phase,
                gate.clocks, self._handed_in, gate.spins,
            )  # fmt: skip
            self.meter.mark(COMPUTE)
            self.meter.waited_within(COMPUTE, int(self._handed_in[self._part, WAITED] - waited))
            losses += more
            if done * len(self._ranks) == len(clocks.starts) - 1:
                break
            if phase == OUT_OF_ROOM:
                self._fold = self._make_fold(int(1.25 * self._pushes.counts[:, 0].sum()))
            else:
                gate.nap()
                self.meter.mark(WAIT)
        self.losses += losses
        self.rows += len(clocks.positions)
        check_losses(losses, clocks.trained, self._ranks[0], self._feed.clock, float(rules.keys.rate))

    def _make_fold(self, num_keys: int) -> Fold:
        return Fold.make(num_keys, len(self._scratch.buffers.direct), self._scratch.buffers.slots.dtype)
