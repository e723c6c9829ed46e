"""How fast can a processor read a table at random? The loop that `doctor` times."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.jit import compiled, prefetch
from paceline.kernels.tables import KEYS_AHEAD


@compiled
def read_at_random(table: NDArray[np.float32], keys: NDArray[np.uint32], out: NDArray[np.float32]) -> None:
    """Read `table[key]` for all `keys`, asking for them ahead as `gather` does, into `out`, over and over.

    The size of `out` is a power of two, small enough to stay in a cache.
    """
    ahead = np.uint64(KEYS_AHEAD)
    mask = np.uint64(out.size - 1)
    for i in range(np.uint64(keys.size)):
        if i + ahead < np.uint64(keys.size):
            prefetch(table, np.uint64(keys[i + ahead]))
        out[i & mask] = table[np.uint64(keys[i])]
