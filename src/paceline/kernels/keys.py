"""How are the keys of rows kept small, distinct and near each other?

A *dictionary* here is an open-addressing table of pairs (key + 1, position), kept in one array of shape [slots, 2];
0 marks an empty slot. Slots are a power of two.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.jit import compiled

Keys = NDArray[Any]  # uint32 or uint64

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@compiled
def fill_dictionary(dictionary: NDArray[np.uint64], keys: Keys, positions: Keys) -> None:
    """Enter `keys[i]` → `positions[i]` into an empty `dictionary` with room to spare."""
    mask = np.uint64(dictionary.shape[0] - 1)
    for i in range(keys.size):
        key = np.uint64(keys[i])
        slot = ((key * GOLDEN) >> np.uint64(32)) & mask
        while dictionary[slot, 0] != 0:
            slot = (slot + np.uint64(1)) & mask
        dictionary[slot, 0] = key + np.uint64(1)
        dictionary[slot, 1] = np.uint64(positions[i])


@compiled
def renumber(keys: Keys, front: Keys, dictionary: NDArray[np.uint64], counts: NDArray[np.int64]) -> None:
    """Replace each of `keys` in place by its new number, and count those that land in front.

    Keys below `front.size` become `front[key]`; others become what the dictionary says, or stay. `counts[n]` grows by
    one for each key whose new number n is below `counts.size`.
    """
    mask = np.uint64(dictionary.shape[0] - 1)
    for k in range(keys.size):
        key = np.uint64(keys[k])
        if key < np.uint64(front.size):
            number = np.uint64(front[key])
        else:
            number = key
            slot = ((key * GOLDEN) >> np.uint64(32)) & mask
            while dictionary[slot, 0] != 0:
                if dictionary[slot, 0] == key + np.uint64(1):
                    number = dictionary[slot, 1]
                    break
                slot = (slot + np.uint64(1)) & mask
        if number < np.uint64(counts.size):
            counts[number] += 1
        keys[k] = number


@compiled
def merge_repeats(offsets: NDArray[np.int64], keys: Keys, values: NDArray[np.float32], seen: NDArray[np.uint64]) -> int:
    """Make the keys of each row distinct, in place: the values of a key that stands twice in a row are added.

    `seen` is scratch of shape [slots, 2], zeroed before its first use, with more than twice as many slots as the
    longest row has keys. Returns how many keys are left; `offsets`, `keys` and `values` are compacted to that.
    """
    mask = np.uint64(seen.shape[0] - 1)
    shift = np.uint64(32)
    written = 0
    start = offsets[0]
    for row in range(offsets.size - 1):
        stop = offsets[row + 1]
        first = written
        # A slot holds (row + 1) << 32 | position in the row beside its key: stale rows need no clearing.
        stamp = np.uint64(row + 1) << shift
        for k in range(start, stop):
            key = np.uint64(keys[k])
            slot = ((key * GOLDEN) >> shift) & mask
            while True:
                if (seen[slot, 1] >> shift) << shift != stamp:
                    seen[slot, 0] = key
                    seen[slot, 1] = stamp | np.uint64(written - first)
                    keys[written] = keys[k]
                    values[written] = values[k]
                    written += 1
                    break
                if seen[slot, 0] == key:
                    values[first + np.int64(seen[slot, 1] & np.uint64(0xFFFFFFFF))] += values[k]
                    break
                slot = (slot + np.uint64(1)) & mask
        start = stop
        offsets[row + 1] = written
    return written
