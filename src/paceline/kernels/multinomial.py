"""The loops of linear models with one score per class over sparse rows, under the softmax loss.

z_c = w_c·x + b_c and l = log Σ exp(z_c) − z_y (multinomial logistic regression). The slope by z_c is p_c − [c = y],
with p = exp(z) / Σ exp(z). The table has a column per class, and the bias is its last row. `gradient` is one step's
computation, for batches. `train_row` is a whole step of one row (`row_loop.py`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from paceline.kernels.jit import REASSOCIATED, never_inlined, reassociated
from paceline.kernels.keys import Keys
from paceline.kernels.optional import row_weight
from paceline.kernels.private import names_of
from paceline.kernels.row_loop import fetch_ahead, row_rule
from paceline.kernels.rules import Table, quick_update, quick_weight, weight
from paceline.kernels.steps import gradient_rule
from paceline.kernels.tables import columns, row_width

Floats = NDArray[np.float32]
Offsets = NDArray[np.int64]


class Multinomial(NamedTuple):
    """A linear model with one score per class, as compiled loops know it: memory for the scores of a row [classes],
    and the weights of classes, or None.
    """

    scores: Floats
    class_weights: Floats | None


@register_jitable(**REASSOCIATED)
def measure_scores(scores: Floats, label: int, counts: np.float32) -> float:
    """The slopes in the place of the scores, times how much the row counts; returns its loss, likewise."""
    largest = scores[0]
    for c in range(1, scores.size):
        largest = max(largest, scores[c])
    own = scores[label] - largest
    total = np.float32(0)
    for c in range(scores.size):
        scores[c] = np.exp(scores[c] - largest)
        total += scores[c]
    share = counts / total
    for c in range(scores.size):
        scores[c] *= share
    scores[label] -= counts
    return np.float64(counts) * (np.log(np.float64(total)) - np.float64(own))


@reassociated
def gradient(model: Any, offsets: Offsets, local: NDArray[np.uint32], values: Floats, labels: NDArray[Any],
             row_weights: Any, fields: Any, weights: Floats, out: Floats) -> float:  # fmt: skip
    """Sum the rows' gradients into `out` [number, classes], from `weights`, likewise; returns the sum of their losses.

    `local` and `values` begin with the first of these rows, wherever its offset says that it lies.
    """
    never_inlined()
    begin, scores = np.uint64(offsets[0]), model.scores
    count, losses = np.uint64(scores.size), 0.0
    for i in range(weights.size):
        out[i] = np.float32(0)
    for row in range(labels.size):
        start, stop = np.uint64(offsets[row]) - begin, np.uint64(offsets[row + 1]) - begin
        for c in range(count):
            scores[c] = weights[c]
        for k in range(start, stop):
            at = np.uint64(local[k]) * count
            for c in range(count):
                scores[c] += weights[at + c] * values[k]
        label = np.int64(labels[row])
        losses += measure_scores(scores, label, row_weight(row_weights, row) * row_weight(model.class_weights, label))
        for c in range(count):
            out[c] += scores[c]
        for k in range(start, stop):
            at = np.uint64(local[k]) * count
            for c in range(count):
                out[at + c] += scores[c] * values[k]
    return losses


gradient_rule(Multinomial, gradient)


def train_row(model: Any, arrays: Any, block: Any, rows: Any, i: Any, bias: Any, private: Any) -> Any:
    """One update by row `rows[i]` of a block, in place; the row's loss as value and factor (`row_loop.py`)."""
    group, bias_group, table, scores = arrays.groups[0], arrays.bias_groups[0], arrays.numbers, model.scores
    values, row = block.values, rows[i]
    names, shift = names_of(private, block, rows, i)
    count, width = columns(group.columns), row_width(arrays.groups)
    first, last = np.uint64(block.offsets[row]), np.uint64(block.offsets[row + 1])
    for c in range(count):
        scores[c] = quick_weight(bias_group.rule, table, bias * width + c, count)
    for k in range(first, last):
        at = np.uint64(names[k + shift]) * width
        for c in range(count):
            scores[c] += quick_weight(group.rule, table, at + c, count) * values[k]
    label = np.int64(block.labels[row])
    counts = row_weight(block.weights, row) * row_weight(model.class_weights, label)
    loss = measure_scores(scores, label, counts)
    fetch_ahead(arrays, block, rows, i, private)
    for c in range(count):
        quick_update(bias_group.rule, table, bias * width + c, count, scores[c])
    for k in range(first, last):
        at = np.uint64(names[k + shift]) * width
        for c in range(count):
            quick_update(group.rule, table, at + c, count, scores[c] * values[k])
    return loss, np.float32(1)


row_rule(Multinomial, train_row)


@reassociated
def score(groups: Any, bias_groups: Any, table: Table, bias: int, num_keys: int, offsets: Offsets, keys: Keys,
          values: Floats, out: Floats) -> None:  # fmt: skip
    """The scores of rows into `out` [rows, classes]; keys from `num_keys` on are unknown and count nothing."""
    count, width, known = columns(groups[0].columns), row_width(groups), np.uint64(num_keys)
    for row in range(out.shape[0]):
        for c in range(count):
            out[row, c] = weight(bias_groups[0].rule, table, np.uint64(bias) * width + c, count)
        for k in range(np.uint64(offsets[row]), np.uint64(offsets[row + 1])):
            key = np.uint64(keys[k])
            if key < known:
                for c in range(count):
                    out[row, c] += weight(groups[0].rule, table, key * width + c, count) * values[k]
