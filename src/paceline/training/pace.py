"""Who waits for whom? The whole of consistency: a gate, `clock - slowest <= staleness`, and a fold."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.gate import GONE, LINE, UNBOUNDED
from paceline.kernels.steps import GateView
from paceline.machine import num_cores

# Reading the clocks takes a nanosecond or two. Workers with a core each look again for about as long as it takes to let
# another thread run. Workers that share a core give it away at once.
SPINS_WITH_A_CORE = 1_000
SPINS_WITHOUT = 20


class Pace(NamedTuple):
    """How far a worker may run ahead, and whether an update is one gradient (`each`) or all workers' (`mean`).

    >>> Pace.of("sync"), Pace.of(4).staleness
    (Pace(staleness=0, fold='mean'), 4)
    """

    staleness: int
    fold: Literal["mean", "each"]

    @staticmethod
    def of(pace: str | int) -> Pace:
        if pace == "sync":
            return Pace(0, "mean")
        return Pace(UNBOUNDED if pace == "async" else int(pace), "each")

    def in_flight(self, keyed: bool) -> int:
        """How many batches a worker of a cluster asks for at a time.

        With more than one it never stands idle while a reply travels, but pulls without having pushed its last batch:
        only if nothing bounds staleness, and if a step moves only the keys of its batch.
        """
        return 2 if self.staleness == UNBOUNDED and keyed else 1

    def rows_per_update(self, workers: int, batch_size: int) -> int:
        """How many rows one update takes: in sync those of all workers."""
        return batch_size * (workers if self.fold == "mean" else 1)


class BrokenGateError(Exception):
    """Another worker failed: workers that wait at the gate stop waiting."""


class Gate:
    """The clocks of all workers, in memory that compiled loops read and write, and waiting on them."""

    def __init__(self, num_workers: int, staleness: int, num_threads: int) -> None:
        self.staleness = staleness
        self.spins = SPINS_WITH_A_CORE if num_threads <= num_cores() else SPINS_WITHOUT
        self.clocks: NDArray[np.int64] = np.full((num_workers, LINE), GONE)
        self.leads: NDArray[np.int64] = np.zeros((num_workers, LINE), np.int64)
        self._broken = False

    @property
    def largest_lead(self) -> int:
        """The most clocks that any worker was ahead of the slowest when it began one."""
        return int(self.leads[:, 0].max())

    def view(self, rank: int) -> GateView:
        """The gate as a worker's compiled loop takes it."""
        return GateView(self.clocks, rank, self.staleness, self.spins, self.leads)

    def enter(self, clock: int) -> None:
        """Set all workers to the same clock. Only while all are paused."""
        self._broken = False
        self.clocks[:, 0] = clock

    def leave(self, ranks: list[int]) -> None:
        """Workers have no more rows: others stop waiting for them."""
        self.clocks[ranks, 0] = GONE

    def break_up(self) -> None:
        """A worker has failed: all others stop waiting."""
        self._broken = True

    def check(self) -> None:
        """Has the gate been shut for long because another worker failed?"""
        if self._broken:
            raise BrokenGateError
