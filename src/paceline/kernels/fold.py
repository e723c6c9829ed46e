"""How do the gradients of several workers become one update, with the same bits however the work is divided?

The sums of each key are added in the order of the calls, rank by rank. `parts` threads may share the work: each takes
the keys whose hash falls to its part, so every key is added up by one thread alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.jit import compiled
from paceline.kernels.keys import GOLDEN, Keys
from paceline.kernels.tables import columns


@compiled
def add_in(given: Any, keys: Keys, sums: NDArray[np.float32], part: int, parts: int, slots: Keys,
           direct: NDArray[np.uint32], turn: int, own: NDArray[np.uint64], distinct: Keys,
           totals: NDArray[np.float32], count: int) -> int:  # fmt: skip
    """Add one worker's `sums` of this part's `keys` to `totals`; returns how many distinct keys there are now.

    `given` says how many columns sums and totals have per key. `slots` and `direct` are scratch as in `number_keys`,
    marked by `turn` (1 to 255), one for all workers of a clock; `own` is scratch for as many numbers as there are keys.
    """
    dim = columns(given)
    # No processor predicts which keys belong to this part: list them first, without a branch.
    num_own = np.uint64(0)
    for i in range(np.uint64(keys.size)):
        own[num_own] = i
        mine = ((np.uint64(keys[i]) * GOLDEN >> np.uint64(48)) * np.uint64(parts)) >> np.uint64(16) == np.uint64(part)
        num_own += np.uint64(mine)
    number_mask = np.uint64(0xFFFFFF)
    mask = np.uint64(slots.shape[0] - 1)
    num_direct = np.uint64(direct.size)
    tag = np.uint64(turn) << np.uint64(24)
    new = np.uint64(count)
    for j in range(num_own):
        i = own[j]
        key = np.uint64(keys[i])
        if key < num_direct:
            entry = np.uint64(direct[key])
            found = entry & ~number_mask == tag
            if not found:
                direct[key] = tag | new
        else:
            slot = (key * GOLDEN >> np.uint64(20)) & mask
            while True:
                entry = np.uint64(slots[slot, 1])
                found = entry & ~number_mask == tag
                if not found:
                    slots[slot, 0] = key
                    slots[slot, 1] = tag | new
                    break
                if np.uint64(slots[slot, 0]) == key:
                    break
                slot = (slot + np.uint64(1)) & mask
        if found:
            at = (entry & number_mask) * dim
            for column in range(dim):
                totals[at + column] += sums[i * dim + column]
        else:
            distinct[new] = key
            for column in range(dim):
                totals[new * dim + column] = sums[i * dim + column]
            new += np.uint64(1)
    return np.int64(new)
