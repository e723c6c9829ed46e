"""The loops that make random matrices: an element depends on seed, row and column alone.

Each row has a SplitMix64 generator of its own (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
2014), whose state comes from the seed and the row. Its number k holds the elements of columns 2k and 2k + 1, 24 bits
each: bits 8 to 31 and bits 40 to 63. An element is those bits divided by 2^24, which float32 and float64 hold exactly.

Products of two elements have 48 bits, so sums of them are made in integers and are exact, in whatever order and however
many at a time a processor adds them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.hashing import mix
from paceline.kernels.jit import compiled, inlined
from paceline.kernels.keys import GOLDEN

BITS = 24
SCALE = 2.0**-BITS
LOW, HIGH = np.uint64(8), np.uint64(40)
MASK = np.uint64(2**BITS - 1)
ONE = np.uint64(1)
# This many steps of four products of 48 bits each can be added up before 64 bits are full.
MOST_STEPS = 1 << 14


@inlined
def row_state(seed: Any, row: Any) -> Any:
    """Where the generator of a row begins."""
    return mix(mix(np.uint64(seed) + GOLDEN) ^ mix(np.uint64(row) * GOLDEN + ONE))


@inlined
def number(state: Any, index: Any) -> Any:
    """Number `index` of a row's generator."""
    return mix(state + (np.uint64(index) + ONE) * GOLDEN)


@inlined
def bits_at(state: Any, column: Any) -> Any:
    """The 24 bits of one element."""
    shift = HIGH if column & 1 else LOW
    return (number(state, column >> 1) >> shift) & MASK


@compiled
def fill_states(seed: Any, first_row: int, step: int, states: NDArray[np.uint64]) -> None:
    """`states[i]` becomes the state of row `first_row + i * step`."""
    for i in range(states.size):
        states[i] = row_state(seed, first_row + i * step)


@compiled
def fill_block(seed: Any, first_row: int, first_column: int, out: NDArray[Any]) -> None:
    """Fill `out`, C-contiguous float32 or float64, with the elements from that row and column on."""
    rows, columns = out.shape
    odd = first_column & 1
    pairs = (columns - odd) // 2
    first = (first_column + odd) >> 1
    for i in range(rows):
        state = row_state(seed, first_row + i)
        line = out[i]
        if odd and columns:
            line[0] = np.float32(np.int32(bits_at(state, first_column))) * np.float32(SCALE)
        for k in range(pairs):
            z = number(state, first + k)
            line[odd + 2 * k] = np.float32(np.int32((z >> LOW) & MASK)) * np.float32(SCALE)
            line[odd + 2 * k + 1] = np.float32(np.int32(z >> HIGH)) * np.float32(SCALE)
        if odd + 2 * pairs < columns:
            line[columns - 1] = np.float32(np.int32(bits_at(state, first_column + columns - 1))) * np.float32(SCALE)


@inlined
def add_up(sums: NDArray[np.uint64], total: Any) -> None:
    """Add a 64-bit sum to one that is kept in two parts."""
    sums[0] += total >> np.uint64(BITS)
    sums[1] += total & MASK


@inlined
def add_scalar(
    seeds: NDArray[np.uint64], row_start: int, row_stop: int, start: int, stop: int, sums: NDArray[np.uint64]
) -> None:
    """`add_products` one by one: for the odd ends of blocks."""
    for i in range(row_start, row_stop):
        state = row_state(seeds[0], i)
        for j in range(start, stop):
            add_up(sums, bits_at(state, j) * bits_at(row_state(seeds[1], j), i))


@compiled
def add_products(seeds: NDArray[np.uint64], row_start: int, row_stop: int, start: int, stop: int,
                 even: NDArray[np.uint64], odd: NDArray[np.uint64], sums: NDArray[np.uint64]) -> None:  # fmt: skip
    """Add the products a[i, j] · b[j, i] of rows i and columns j, in units of 2^-48, to `sums`: high part, low 24 bits.

    `seeds` are those of a and b. `even` and `odd` are room for the states of b's rows, half as many each as there are
    columns. Neither matrix is made: rows and columns are taken in pairs, so that of each number both halves are used.
    """
    r0, r1 = row_start + (row_start & 1), row_stop - (row_stop & 1)
    c0, c1 = start + (start & 1), stop - (stop & 1)
    if r0 >= r1 or c0 >= c1:
        add_scalar(seeds, row_start, row_stop, start, stop, sums)
        return
    add_scalar(seeds, row_start, r0, start, stop, sums)
    add_scalar(seeds, r1, row_stop, start, stop, sums)
    add_scalar(seeds, r0, r1, start, c0, sums)
    add_scalar(seeds, r0, r1, c1, stop, sums)
    pairs, first = (c1 - c0) // 2, np.uint64(c0 >> 1)
    fill_states(seeds[1], c0, 2, even[:pairs])
    fill_states(seeds[1], c0 + 1, 2, odd[:pairs])
    for i in range(r0, r1, 2):
        upper, lower = row_state(seeds[0], i), row_state(seeds[0], i + 1)
        across = (np.uint64(i >> 1) + ONE) * GOLDEN
        for begin in range(0, pairs, MOST_STEPS):
            total = np.uint64(0)
            for k in range(begin, min(begin + MOST_STEPS, pairs)):
                along = (first + np.uint64(k) + ONE) * GOLDEN
                a, b = mix(upper + along), mix(lower + along)
                c, d = mix(even[k] + across), mix(odd[k] + across)
                total += ((a >> LOW) & MASK) * ((c >> LOW) & MASK)
                total += (a >> HIGH) * ((d >> LOW) & MASK)
                total += ((b >> LOW) & MASK) * (c >> HIGH)
                total += (b >> HIGH) * (d >> HIGH)
            add_up(sums, total)


@compiled
def add_columns(x: NDArray[Any], y: NDArray[Any], sums: NDArray[np.float64]) -> None:
    """Add x[i, j] · y[i, j] to `sums[j]`, row by row: one order of summation, whatever the processor."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            sums[j] += np.float64(x[i, j]) * np.float64(y[i, j])
