"""How are rows laid out for a GPU? The hottest keys are columns, and all others are listed row by row.

Every block of threads adds up the gradients of a column before it touches memory, so keys that most rows have do not
make all threads wait for the same few addresses. There are two kinds of columns: numbers, one per row, and bits, which
say that a row has the key with the value 1. What fits in neither is listed: a key, and its value unless all are 1.
On their way over the bus, listed keys have as many bits as the largest key needs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from paceline.kernels.jit import compiled
from paceline.kernels.keys import Keys

Floats = NDArray[np.float32]
BITS = 32
WORD = np.uint64(64)
LISTED = -1


@compiled
def count_hot(keys: Keys, values: Floats, counts: NDArray[np.int64], ones: NDArray[np.int64]) -> None:
    """Add how often each of the hottest keys occurs to `counts`, and how often with the value 1 to `ones`."""
    hot = np.uint64(counts.size)
    for i in range(keys.size):
        key = np.uint64(keys[i])
        if key < hot:
            counts[key] += 1
            ones[key] += values[i] == 1


@register_jitable
def _column_of(key: Any, value: Any, row: Any, columns: Any, num_numbers: Any, last_row: Any) -> Any:
    """The column of a nonzero, or `LISTED`. A key that a row has twice is listed the second time."""
    if key >= np.uint64(columns.size):
        return LISTED
    column = columns[key]
    if column == LISTED or last_row[column] == row or (column >= num_numbers and value != 1):
        return LISTED
    last_row[column] = row
    return column


@compiled
def count_listed(
    offsets: NDArray[np.int64], keys: Keys, values: Floats, columns: NDArray[np.int32], num_numbers: int,
    last_row: NDArray[np.int64], lengths: NDArray[np.int32],
) -> bool:  # fmt: skip
    """How many nonzeros of each row are listed, into `lengths`; whether all of them have the value 1.

    `columns` are those of the hottest keys: the first `num_numbers` have numbers, the others bits. `last_row` is
    scratch, a number per column.
    """
    last_row[:] = -1
    all_ones = True
    for row in range(lengths.size):
        count = 0
        for k in range(offsets[row], offsets[row + 1]):
            if _column_of(np.uint64(keys[k]), values[k], row, columns, num_numbers, last_row) == LISTED:
                count += 1
                all_ones = all_ones and values[k] == 1
        lengths[row] = count
    return all_ones


@compiled
def pack_rows(
    offsets: NDArray[np.int64], keys: Keys, values: Floats, columns: NDArray[np.int32], last_row: NDArray[np.int64],
    numbers: Floats, bits: NDArray[np.uint32], listed: Any, listed_values: Floats, most_key: int,
) -> None:  # fmt: skip
    """The columns of rows into `numbers` [rows, n] and `bits` [rows, words], zeros before, and the rest into `listed`.

    `listed_values` has no room if all values there are 1. Keys beyond `most_key` are listed as `most_key`.
    """
    last_row[:] = -1
    at, num_numbers, most = 0, numbers.shape[1], np.uint64(most_key)
    for row in range(numbers.shape[0]):
        for k in range(offsets[row], offsets[row + 1]):
            column = _column_of(np.uint64(keys[k]), values[k], row, columns, num_numbers, last_row)
            if column == LISTED:
                listed[at] = min(np.uint64(keys[k]), most)
                if listed_values.size > 0:
                    listed_values[at] = values[k]
                at += 1
            elif column < num_numbers:
                numbers[row, column] = values[k]
            else:
                bit = column - num_numbers
                bits[row, bit // BITS] |= np.uint32(1) << np.uint32(bit % BITS)


@compiled
def pack_bits(found: NDArray[Any], width: int, words: NDArray[np.uint64]) -> None:
    """Write numbers of `width` bits each, one right after the other, to `words`, which are zeros before.

    A number begins at the lowest bit of a word that is free. There is room for one word more than they need.
    """
    one, wide = np.uint64(1), np.uint64(width)
    for i in range(found.size):
        bit = np.uint64(i) * wide
        word, shift = bit // WORD, bit % WORD
        number = np.uint64(found[i])
        words[word] |= number << shift
        # Shifting by 64 in one step is not defined.
        words[word + one] |= (number >> one) >> (WORD - one - shift)
