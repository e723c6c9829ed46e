"""How are the keys of rows kept small, distinct and near each other?

A *dictionary* here is an open-addressing table of pairs (key + 1, position), kept in one array of shape [slots, 2]
of uint64, or of uint32 where that holds them; 0 marks an empty slot. Slots are a power of two.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.jit import compiled, inlined
from paceline.kernels.optional import move

Keys = NDArray[Any]  # uint32 or uint64

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MARKS = 16384
MARK_SHIFT = np.uint64(64 - 14)
PART_BITS = 4
PART_SHIFT = np.uint64(64 - PART_BITS)


def key_dtype(features: int) -> type:
    """The integers that hold the keys below `features`, and `features` itself: the bias's key."""
    return np.uint32 if features < 1 << 32 else np.uint64


@compiled
def fill_dictionary(dictionary: Keys, keys: Keys, positions: Keys) -> None:
    """Enter `keys[i]` → `positions[i]` into an empty `dictionary` with room to spare."""
    mask = np.uint64(dictionary.shape[0] - 1)
    for i in range(keys.size):
        key = np.uint64(keys[i])
        slot = ((key * GOLDEN) >> np.uint64(32)) & mask
        while dictionary[slot, 0] != 0:
            slot = (slot + np.uint64(1)) & mask
        dictionary[slot, 0] = key + np.uint64(1)
        dictionary[slot, 1] = positions[i]


@compiled
def fill_filter(bits: NDArray[np.uint64], keys: Keys) -> None:
    """Set the bit of each key, one of as many as there are in `bits`: a power of two, at most 2**32."""
    mask = np.uint64(64 * bits.size - 1)
    for i in range(keys.size):
        place = ((np.uint64(keys[i]) * GOLDEN) >> np.uint64(32)) & mask
        bits[place >> np.uint64(6)] |= np.uint64(1) << (place & np.uint64(63))


@inlined
def _number_of(key: Any, front: Keys, dictionary: Keys, bits: NDArray[np.uint64]) -> Any:
    """The new number of a key: `front[key]`, what the dictionary says, or the key itself.

    Most keys of even data keep their numbers. The bits, which stay in near caches, say so without a look into the
    dictionary.
    """
    if key < np.uint64(front.size):
        return np.uint64(front[key])
    place = (key * GOLDEN) >> np.uint64(32)
    bit = place & np.uint64(64 * bits.size - 1)
    if (bits[bit >> np.uint64(6)] >> (bit & np.uint64(63))) & np.uint64(1):
        mask = np.uint64(dictionary.shape[0] - 1)
        slot = place & mask
        while dictionary[slot, 0] != 0:
            if np.uint64(dictionary[slot, 0]) == key + np.uint64(1):
                return np.uint64(dictionary[slot, 1])
            slot = (slot + np.uint64(1)) & mask
    return key


@compiled
def renumber(keys: Keys, front: Keys, dictionary: Keys, bits: NDArray[np.uint64], counts: NDArray[np.int64]) -> None:
    """Replace each of `keys` in place by its new number, and count those that land in front.

    Keys below `front.size` become `front[key]`; others become what the dictionary says, or stay. `counts[n]` grows by
    one for each key whose new number n is below `counts.size`. `bits` are a filter of the dictionary's keys.
    """
    for k in range(keys.size):
        number = _number_of(np.uint64(keys[k]), front, dictionary, bits)
        if number < np.uint64(counts.size):
            counts[number] += 1
        keys[k] = number


@compiled
def add_up(keys: Keys, values: NDArray[np.float32], front: Keys, dictionary: Keys, bits: NDArray[np.uint64],
           sums: NDArray[np.float64]) -> None:  # fmt: skip
    """For each key whose new number n is below the length of `sums`, `sums[n]` grows by 1, its value and its square."""
    for k in range(keys.size):
        number = _number_of(np.uint64(keys[k]), front, dictionary, bits)
        if number < np.uint64(sums.shape[0]):
            value = np.float64(values[k])
            sums[number, 0] += 1
            sums[number, 1] += value
            sums[number, 2] += value * value


@compiled
def merge_repeats(offsets: NDArray[np.int64], keys: Keys, values: NDArray[np.float32], fields: Any,
                  seen: NDArray[np.uint64], marks: NDArray[np.uint32]) -> int:  # fmt: skip
    """Make the keys of each row distinct, in place: the values of a key that occurs twice in a row are added, and it
    stays in the first of its fields, if there are `fields`.

    `seen` is scratch of shape [slots, 2], zeroed before its first use, with more than twice as many slots as the
    longest row has keys; `marks` is scratch of MARKS zeros. Returns how many keys are left; `offsets`, `keys`, `values`
    and `fields` are compacted to that.
    """
    mask = np.uint64(seen.shape[0] - 1)
    shift = np.uint64(32)
    written = 0
    start = offsets[0]
    for row in range(offsets.size - 1):
        stop = offsets[row + 1]
        first = written
        if _ascend(keys, start, stop) or _surely_distinct(keys, start, stop, marks, np.uint32(row + 1)):
            if written < start:
                for k in range(start, stop):
                    keys[written + k - start] = keys[k]
                    values[written + k - start] = values[k]
                    move(fields, written + k - start, fields, k)
            written += stop - start
            start = stop
            offsets[row + 1] = written
            continue
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
                    move(fields, written, fields, k)
                    written += 1
                    break
                if seen[slot, 0] == key:
                    values[first + np.int64(seen[slot, 1] & np.uint64(0xFFFFFFFF))] += values[k]
                    break
                slot = (slot + np.uint64(1)) & mask
        start = stop
        offsets[row + 1] = written
    return written


@inlined
def _ascend(keys: Keys, start: int, stop: int) -> bool:
    """Whether keys rise from `start` to `stop`: then none occurs twice. One vector comparison for several keys."""
    rising = True
    for k in range(start + 1, stop):
        rising &= keys[k] > keys[k - 1]
    return rising


@inlined
def _surely_distinct(keys: Keys, start: int, stop: int, marks: NDArray[np.uint32], stamp: Any) -> bool:
    """Whether no two keys share a mark. Most rows of some dozens of distinct keys pass, without a branch per key."""
    shared = False
    for k in range(start, stop):
        mark = (np.uint64(keys[k]) * GOLDEN) >> MARK_SHIFT
        shared |= marks[mark] == stamp
        marks[mark] = stamp
    return not shared


@compiled
def sort_by_part(keys: Keys, ends: NDArray[np.int64], dealt: Keys) -> None:
    """Copy `keys` into `dealt`, sorted by the part of all keys that each belongs to; part p ends at `ends[p]`.

    A hash of the key decides. There are 2**PART_BITS parts; `ends` has one more entry, and is all zeros before.
    """
    for k in range(keys.size):
        ends[((np.uint64(keys[k]) * GOLDEN) >> PART_SHIFT) + np.uint64(1)] += 1
    for part in range(1, ends.size):
        ends[part] += ends[part - 1]
    for k in range(keys.size):
        part_of_key = (np.uint64(keys[k]) * GOLDEN) >> PART_SHIFT
        dealt[ends[part_of_key]] = keys[k]
        ends[part_of_key] += 1
