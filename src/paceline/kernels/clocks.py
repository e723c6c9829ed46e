"""Which workers of a cluster may continue? A shard's knowledge of all workers, and the gate, as compiled loops take it.

Python (`training/cluster/clocks.py`) and the compiled serving loop (`serving.py`) read and write the same numbers, on
one thread.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.jit import compiled

# A worker's numbers. Flags are 0 or 1, moments are nanoseconds.
APPLIED, BASE, FIRST, ASKED, PRESENT, WAITING, LEAVING, ANNOUNCED, PUSHED, ARRIVED, WORKED = range(11)
WORKER_NUMBERS = 16

# What is counted over all workers.
NUM_PUSHED, ROWS, LOSS_ROWS, LARGEST_LEAD, REQUESTS, QUEUE, SERVICE, SPUN = range(8)
TOTALS = 8


class ClockArrays(NamedTuple):
    """All workers of a run as a shard sees them.

    `workers` has the numbers of each worker [workers, WORKER_NUMBERS], `totals` what is counted over all of them, and
    `losses` the sum of their losses.
    """

    workers: NDArray[np.int64]
    totals: NDArray[np.int64]
    losses: NDArray[np.float64]
    in_flight: int
    staleness: int

    @staticmethod
    def make(num_workers: int, in_flight: int, staleness: int) -> ClockArrays:
        return ClockArrays(
            np.zeros((num_workers, WORKER_NUMBERS), np.int64), np.zeros(TOTALS, np.int64), np.zeros(1), in_flight,
            staleness,
        )  # fmt: skip


@compiled
def clock_of(clocks: ClockArrays, rank: int) -> int:
    """Batches that a worker has finished in this segment."""
    worker = clocks.workers[rank]
    return max(min(worker[ASKED] - clocks.in_flight, worker[APPLIED]) - worker[BASE], 0)


@compiled
def let_through(clocks: ClockArrays, ranks: NDArray[np.int64]) -> int:
    """The gate: put those that wait and are not too far ahead of the slowest into `ranks`; how many they are."""
    slowest, any_present = 0, False
    for rank in range(clocks.workers.shape[0]):
        if clocks.workers[rank, PRESENT]:
            clock = clock_of(clocks, rank)
            slowest = min(slowest, clock) if any_present else clock
            any_present = True
    count = 0
    for rank in range(clocks.workers.shape[0]):
        worker = clocks.workers[rank]
        if not worker[WAITING] or worker[PUSHED] or worker[ANNOUNCED]:
            continue
        if not worker[LEAVING]:
            lead = clock_of(clocks, rank) - slowest
            if lead > clocks.staleness:
                continue
            clocks.totals[LARGEST_LEAD] = max(clocks.totals[LARGEST_LEAD], lead)
        ranks[count] = rank
        count += 1
    return count


@compiled
def book(clocks: ClockArrays, rows: int, losses: float) -> None:
    """Count a gradient that was applied."""
    clocks.totals[ROWS] += rows
    clocks.totals[LOSS_ROWS] += rows
    clocks.losses[0] += losses
