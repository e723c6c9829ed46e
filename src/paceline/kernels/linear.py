"""The loops of linear models over sparse rows: z = w·x + b, under any loss.

The table has one column, and the bias is its last row. `gradient` is one step's computation, for batches. `train_row`
is a whole step of one row, without numbering keys, for the loop over many of them (`row_loop.py`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.jit import compiled, never_inlined, prefetch, reassociated
from paceline.kernels.keys import Keys
from paceline.kernels.losses import ROWS_PER_LOG, measure_row
from paceline.kernels.optional import row_weight
from paceline.kernels.private import names_of
from paceline.kernels.row_loop import ROWS_AHEAD, fetch_ahead, row_rule
from paceline.kernels.rules import Table, memory, quick_update, quick_weight, weight
from paceline.kernels.steps import gradient_rule

Floats = NDArray[np.float32]
Offsets = NDArray[np.int64]

ONE = np.uint64(1)


class Linear(NamedTuple):
    """A linear model, as compiled loops know it."""

    loss: Any


@reassociated
def gradient(model: Any, offsets: Offsets, local: NDArray[np.uint32], values: Floats, labels: NDArray[Any],
             row_weights: Any, fields: Any, weights: Floats, out: Floats) -> float:  # fmt: skip
    """Sum the rows' gradients into `out` [number], from `weights` [number]; returns the sum of their losses.

    `local` and `values` begin with the first of these rows, wherever its offset says that it lies.
    """
    # The same machine code, and so the same bits, for every caller: a fused loop here, a worker of a cluster there.
    never_inlined()
    begin = np.uint64(offsets[0])
    losses, product = 0.0, 1.0
    for i in range(weights.size):
        out[i] = np.float32(0)
    for row in range(labels.size):
        start, stop = np.uint64(offsets[row]) - begin, np.uint64(offsets[row + 1]) - begin
        z = weights[0]
        for k in range(start, stop):
            z += weights[local[k]] * values[k]
        slope, value, factor = measure_row(model.loss, z, np.float32(labels[row]), row_weights, row)
        product *= factor
        if row % ROWS_PER_LOG == ROWS_PER_LOG - 1:
            losses += np.log(product)
            product = 1.0
        losses += value
        out[0] += slope
        for k in range(start, stop):
            out[local[k]] += slope * values[k]
    return losses + np.log(product)


gradient_rule(Linear, gradient)


def train_row(model: Any, arrays: Any, block: Any, rows: Any, i: Any, bias: Any, private: Any) -> Any:
    """One update by row `rows[i]` of a block, in place; the row's loss as value and factor (`row_loop.py`)."""
    rule, bias_rule, table = arrays.groups, arrays.bias_groups, arrays.numbers
    values, row = block.values, rows[i]
    names, shift = names_of(private, block, rows, i)
    step = ONE + memory(rule)
    first, last = np.uint64(block.offsets[row]), np.uint64(block.offsets[row + 1])
    z = quick_weight(bias_rule, table, bias * step, ONE)
    for k in range(first, last):
        z += quick_weight(rule, table, np.uint64(names[k + shift]) * step, ONE) * values[k]
    slope, value, factor = measure_row(model.loss, z, np.float32(block.labels[row]), block.weights, row)
    # Here, because the processor has time for it while it waits for the slope.
    fetch_ahead(arrays, block, rows, i, private)
    quick_update(bias_rule, table, bias * step, ONE, slope)
    for k in range(first, last):
        quick_update(rule, table, np.uint64(names[k + shift]) * step, ONE, slope * values[k])
    return value, factor


row_rule(Linear, train_row)


@reassociated
def score(rule: Any, bias_rule: Any, table: Table, bias: int, num_keys: int, offsets: Offsets, keys: Keys,
          values: Floats, out: Floats) -> None:  # fmt: skip
    """The scores w·x + b of rows into `out` [rows]; keys from `num_keys` on are unknown and count nothing."""
    step = ONE + memory(rule)
    known = np.uint64(num_keys)
    for row in range(out.size):
        if row + ROWS_AHEAD < out.size:
            for k in range(np.uint64(offsets[row + ROWS_AHEAD]), np.uint64(offsets[row + ROWS_AHEAD + 1])):
                if np.uint64(keys[k]) < known:
                    prefetch(table, np.uint64(keys[k]) * step)
        z = weight(bias_rule, table, np.uint64(bias) * step, ONE)
        for k in range(np.uint64(offsets[row]), np.uint64(offsets[row + 1])):
            key = np.uint64(keys[k])
            if key < known:
                z += weight(rule, table, key * step, ONE) * values[k]
        out[row] = z


@compiled
def count_above(
    negatives: Floats, of_negatives: NDArray[np.float64] | None, positives: Floats,
    of_positives: NDArray[np.float64] | None,
) -> float:  # fmt: skip
    """The weights of pairs in which the positive's score is the higher one, ties counting a half.

    Scores are sorted; `of_negatives` and `of_positives` are the weights of the rows, or None. A pair weighs the
    product.
    """
    below, next_tie = 0, 0
    lighter, ties, pairs = 0.0, 0.0, 0.0
    for i in range(positives.size):
        score = positives[i]
        if i == 0 or positives[i - 1] != score:
            lighter += ties
            below = next_tie
            while below < negatives.size and negatives[below] < score:
                lighter += row_weight(of_negatives, below)
                below += 1
            ties, next_tie = 0.0, below
            while next_tie < negatives.size and negatives[next_tie] == score:
                ties += row_weight(of_negatives, next_tie)
                next_tie += 1
        pairs += row_weight(of_positives, i) * (lighter + 0.5 * ties)
    return pairs
