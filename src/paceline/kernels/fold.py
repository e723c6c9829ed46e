"""How do the gradients of several workers become one update, with the same bits however the work is divided?

The sums of each key are added in the order of the calls, rank by rank. Several threads may share the work: each worker
deals out its keys by their hash, one part per thread (`deal_out`), so every key is added up by one thread alone, and a
thread reads only its own part of what the workers pushed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.jit import compiled, inlined
from paceline.kernels.keys import GOLDEN, Keys
from paceline.kernels.tables import columns

ONE = np.uint64(1)


@compiled
def deal_out(given: Any, keys: Keys, sums: NDArray[np.float32], ends: NDArray[np.int64], out_keys: Keys,
             out_sums: NDArray[np.float32]) -> None:  # fmt: skip
    """Copy keys and their sums, part by part; part p is then `ends[p]` up to `ends[p + 1]` of them."""
    dim = columns(given)
    parts = np.uint64(ends.size - 1)
    # `ends[p + 1]` counts part p, then is where it begins, and after copying where it ends.
    ends[:] = 0
    for i in range(np.uint64(keys.size)):
        ends[part_of(keys[i], parts) + ONE] += 1
    begin = 0
    for part in range(parts):
        count = ends[part + ONE]
        ends[part + ONE] = begin
        begin += count
    for i in range(np.uint64(keys.size)):
        part = part_of(keys[i], parts) + ONE
        at = np.uint64(ends[part])
        ends[part] += 1
        out_keys[at] = keys[i]
        for column in range(dim):
            out_sums[at * dim + column] = sums[i * dim + column]


@inlined
def part_of(key: Any, parts: Any) -> Any:
    """Which of `parts` parts a key belongs to."""
    return ((np.uint64(key) * GOLDEN >> np.uint64(48)) * parts) >> np.uint64(16)


@compiled
def add_in(given: Any, keys: Keys, sums: NDArray[np.float32], start: int, stop: int, slots: Keys,
           direct: NDArray[np.uint32], turn: int, distinct: Keys, totals: NDArray[np.float32],
           count: int) -> int:  # fmt: skip
    """Add a worker's `sums` of `keys` from `start` up to `stop` to `totals`; returns how many distinct keys there are.

    `given` says how many columns sums and totals have per key. `slots` and `direct` are scratch as in `number_keys`,
    marked by `turn` (1 to 255), one for all workers of a clock.
    """
    dim = columns(given)
    number_mask = np.uint64(0xFFFFFF)
    mask = np.uint64(slots.shape[0] - 1)
    num_direct = np.uint64(direct.size)
    tag = np.uint64(turn) << np.uint64(24)
    new = np.uint64(count)
    for i in range(np.uint64(start), np.uint64(stop)):
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
