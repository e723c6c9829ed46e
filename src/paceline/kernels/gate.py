"""May this worker begin its next clock? The gate of every pace, as a compiled check over shared clocks.

`clocks` is int64 [workers, LINE]: the clock of rank r is `clocks[r, 0]`, alone on its cache line. A worker that
has left the gate stands at `GONE`. Clocks only grow while workers run, so a check that reads them without a lock errs
on the side of waiting.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.jit import compiled

LINE = 8
GONE = np.int64(np.iinfo(np.int64).max)


@compiled
def slowest(clocks: NDArray[np.int64]) -> int:
    """The smallest clock of the workers in the gate, or GONE."""
    least = clocks[0, 0]
    for rank in range(1, clocks.shape[0]):
        least = min(least, clocks[rank, 0])
    return least


@compiled
def passes(clocks: NDArray[np.int64], clock: int, staleness: int, spins: int) -> bool:
    """Look up to `spins` times whether `clock - slowest <= staleness`; whether it came to hold."""
    for _ in range(spins):  # noqa: SIM110 (any() over a generator does not compile)
        if clock - slowest(clocks) <= staleness:
            return True
    return False
