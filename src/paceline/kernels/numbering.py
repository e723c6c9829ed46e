"""Which distinct keys does a batch have? They are numbered, and everything after that works with the numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.jit import compiled
from paceline.kernels.keys import GOLDEN, Keys

FEWEST_SLOTS = 4096


@compiled
def number_keys(keys: Keys, bias: int, slots: Keys, direct: NDArray[np.uint32], turn: NDArray[np.int64],
                distinct: Keys, local: NDArray[np.uint32]) -> int:  # fmt: skip
    """Number the distinct keys of a batch in order of first sight; the bias, if `bias` is not negative, is number 0.

    Fills `distinct` [number] and `local` [key → number] and returns how many there are. `slots` is an open-addressing
    table [power of two, 2] of (key, turn | number), and `direct` [keys] is the same for the hottest keys, which come
    first. `turn[0]` counts the calls, so that the tables are cleared only when it reaches 255. `turn[1]` is how much
    of `slots` is in use: no more than batches have needed so far, so that it stays in the near caches.
    """
    turn[1] = max(turn[1], min(slots.shape[0], FEWEST_SLOTS))
    while True:
        count = _number_within(keys, bias, slots, direct, turn, distinct, local)
        if count >= 0:
            return count
        turn[1] *= 2


@compiled
def _number_within(keys: Keys, bias: int, slots: Keys, direct: NDArray[np.uint32], turn: NDArray[np.int64],
                   distinct: Keys, local: NDArray[np.uint32]) -> int:  # fmt: skip
    """As `number_keys`; -1 if `turn[1]` slots are too few."""
    if turn[0] == 255:
        slots[:] = 0
        direct[:] = 0
        turn[0] = 0
    turn[0] += 1
    number_mask = np.uint64(0xFFFFFF)
    mask = np.uint64(turn[1] - 1)
    # When more than a third is taken, finding a free slot takes too long.
    room = np.uint64(turn[1] // 8 * 3 if turn[1] < slots.shape[0] else turn[1])
    num_direct = np.uint64(direct.size)
    tag = np.uint64(turn[0]) << np.uint64(24)
    count, taken = np.uint64(0), np.uint64(0)
    if bias >= 0:
        distinct[0] = bias
        count = np.uint64(1)
    # No processor predicts whether a key is new, so everything is written as if it were.
    for k in range(np.uint64(keys.size)):
        key = np.uint64(keys[k])
        if key < num_direct:
            entry = np.uint64(direct[key])
            new = entry & ~number_mask != tag
            number = count if new else entry & number_mask
            direct[key] = tag | number
        else:
            slot = ((key * GOLDEN) >> np.uint64(32)) & mask
            while True:
                entry = np.uint64(slots[slot, 1])
                new = entry & ~number_mask != tag
                if new or np.uint64(slots[slot, 0]) == key:
                    break
                slot = (slot + np.uint64(1)) & mask
            number = count if new else entry & number_mask
            slots[slot, 0] = key
            slots[slot, 1] = tag | number
            taken += np.uint64(new)
            if taken > room:
                return -1
        # There is room for one more than the nonzeros.
        distinct[count] = key
        local[k] = number
        count += np.uint64(new)
    return np.int64(count)
