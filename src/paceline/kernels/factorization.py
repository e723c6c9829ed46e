"""The loops of factorization machines (Rendle, 2010, "Factorization Machines"), under any loss:

    z = b + Σᵢ wᵢ xᵢ + Σᵢ<ⱼ ⟨vᵢ, vⱼ⟩ xᵢ xⱼ,    where  Σᵢ<ⱼ ⟨vᵢ, vⱼ⟩ xᵢ xⱼ = ½ Σ_f (S_f² − Σᵢ (v_if xᵢ)²),  S = Σᵢ vᵢ xᵢ,
    ∂z/∂wᵢ = xᵢ,    ∂z/∂vᵢ = xᵢ (S − vᵢ xᵢ).

The row of a key has its weight, then its factors, the columns of two groups. The bias is the weight of the last row.
The factors of a key are one vector (`vectors.py`), so that a nonzero takes a few instructions in each of two passes
over a row: one that adds up S and z, and one that updates.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.jit import never_inlined, reassociated
from paceline.kernels.keys import Keys
from paceline.kernels.losses import ROWS_PER_LOG, measure_row
from paceline.kernels.private import names_of
from paceline.kernels.row_loop import ROWS_AHEAD, fetch_ahead, row_rule
from paceline.kernels.rules import Table, memory, quick_update, quick_weight, weight
from paceline.kernels.steps import gradient_rule
from paceline.kernels.tables import prefetch_row, row_width
from paceline.kernels.vectors import Lanes, Vectors, filled, load, store

Floats = NDArray[np.float32]
Offsets = NDArray[np.int64]

ONE = np.uint64(1)
HALF = np.float32(0.5)


class FactorizationMachine(NamedTuple):
    """A factorization machine, as compiled loops know it: `lanes` are its factors."""

    loss: Any
    lanes: Lanes


@reassociated
def gradient(model: Any, offsets: Offsets, local: NDArray[np.uint32], values: Floats, labels: NDArray[Any],
             row_weights: Any, fields: Any, weights: Floats, out: Floats) -> float:  # fmt: skip
    """Sum the rows' gradients into `out` [number, 1 + factors], from `weights`; returns the sum of their losses."""
    # The same machine code, and so the same bits, for every caller.
    never_inlined()
    lanes = model.lanes
    dim = np.uint64(len(lanes) + 1)
    begin = np.uint64(offsets[0])
    losses, product = 0.0, 1.0
    for i in range(weights.size):
        out[i] = np.float32(0)
    for row in range(labels.size):
        start, stop = np.uint64(offsets[row]) - begin, np.uint64(offsets[row + 1]) - begin
        z = weights[0]
        both = squares = filled(np.float32(0), lanes)
        for k in range(start, stop):
            at = np.uint64(local[k]) * dim
            z += weights[at] * values[k]
            factors = load(weights, at + ONE, lanes) * values[k]
            both += factors
            squares += factors * factors
        z += HALF * np.sum(both * both - squares)
        slope, value, factor = measure_row(model.loss, z, np.float32(labels[row]), row_weights, row)
        product *= factor
        if row % ROWS_PER_LOG == ROWS_PER_LOG - 1:
            losses += np.log(product)
            product = 1.0
        losses += value
        out[0] += slope
        for k in range(start, stop):
            at = np.uint64(local[k]) * dim
            by = slope * values[k]
            out[at] += by
            rest = both - load(weights, at + ONE, lanes) * values[k]
            store(out, at + ONE, load(out, at + ONE, lanes) + rest * by)
    return losses + np.log(product)


gradient_rule(FactorizationMachine, gradient)


def train_row(model: Any, arrays: Any, block: Any, rows: Any, i: Any, bias: Any, private: Any) -> Any:
    """One update by row `rows[i]` of a block, in place; the row's loss as value and factor (`row_loop.py`)."""
    groups, table, lanes = arrays.groups, arrays.numbers, model.lanes
    rule, factor_rule, bias_rule = groups[0].rule, groups[1].rule, arrays.bias_groups[0].rule
    vectors, num_factors = Vectors(table, lanes), np.uint64(len(lanes))
    width, first_factor = row_width(groups), ONE + memory(rule)
    values, row = block.values, rows[i]
    names, shift = names_of(private, block, rows, i)
    first, last = np.uint64(block.offsets[row]), np.uint64(block.offsets[row + 1])
    z = quick_weight(bias_rule, table, bias * width, ONE)
    both = squares = filled(np.float32(0), lanes)
    for k in range(first, last):
        at = np.uint64(names[k + shift]) * width
        z += quick_weight(rule, table, at, ONE) * values[k]
        factors = quick_weight(factor_rule, vectors, at + first_factor, num_factors) * values[k]
        both += factors
        squares += factors * factors
    z += HALF * np.sum(both * both - squares)
    slope, value, factor = measure_row(model.loss, z, np.float32(block.labels[row]), block.weights, row)
    # Here, because the processor has time for it while it waits for the slope.
    fetch_ahead(arrays, block, rows, i, private)
    quick_update(bias_rule, table, bias * width, ONE, slope)
    for k in range(first, last):
        at = np.uint64(names[k + shift]) * width
        by = slope * values[k]
        quick_update(rule, table, at, ONE, by)
        rest = both - quick_weight(factor_rule, vectors, at + first_factor, num_factors) * values[k]
        quick_update(factor_rule, vectors, at + first_factor, num_factors, rest * by)
    return value, factor


row_rule(FactorizationMachine, train_row)


@reassociated
def score(model: Any, groups: Any, bias_groups: Any, table: Table, num_keys: int, offsets: Offsets, keys: Keys,
          values: Floats, out: Floats) -> None:  # fmt: skip
    """The scores of rows into `out` [rows]; the bias is key `num_keys`, and larger ones are unknown and ignored."""
    lanes = model.lanes
    vectors, num_factors = Vectors(table, lanes), np.uint64(len(lanes))
    rule, factor_rule = groups[0].rule, groups[1].rule
    step, first_factor = row_width(groups), ONE + memory(rule)
    known = np.uint64(num_keys)
    for row in range(out.size):
        if row + ROWS_AHEAD < out.size:
            for k in range(np.uint64(offsets[row + ROWS_AHEAD]), np.uint64(offsets[row + ROWS_AHEAD + 1])):
                if np.uint64(keys[k]) < known:
                    prefetch_row(groups, table, np.uint64(keys[k]) * step)
        z = weight(bias_groups[0].rule, table, known * step, ONE)
        both = squares = filled(np.float32(0), lanes)
        for k in range(np.uint64(offsets[row]), np.uint64(offsets[row + 1])):
            key = np.uint64(keys[k])
            if key < known:
                at = key * step
                z += weight(rule, table, at, ONE) * values[k]
                factors = weight(factor_rule, vectors, at + first_factor, num_factors) * values[k]
                both += factors
                squares += factors * factors
        out[row] = z + HALF * np.sum(both * both - squares)
