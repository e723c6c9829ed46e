"""The loops of field-aware factorization machines (Juan, Zhuang, Chin and Lin, 2016, "Field-aware Factorization
Machines for CTR Prediction"), under any loss. A key has factors for every field that it may meet:

    z = b + Σᵢ wᵢ xᵢ + Σᵢ<ⱼ ⟨vᵢ(fⱼ), vⱼ(fᵢ)⟩ xᵢ xⱼ,    where fᵢ is the field of nonzero i.

With C(g, f) = Σ xⱼ vⱼ(g) over the nonzeros j of field f, which is what field f has for keys of field g,

    Σᵢ<ⱼ … = ½ Σᵢ xᵢ (Σ_g ⟨vᵢ(g), C(fᵢ, g)⟩ − xᵢ |vᵢ(fᵢ)|²),    ∂z/∂vᵢ(g) = xᵢ (C(fᵢ, g) − [g = fᵢ] xᵢ vᵢ(fᵢ)).

So a row takes three passes over its nonzeros and their factors instead of one over all pairs: the first adds up C, the
second z, and the third updates. Where every field occurs once, the terms are the same.

The row of a key has its weight, then its factors, field by field. The bias is the weight of the last row. Factors are
trained by optimizers that keep them as they are (`Optimizer.keeps_weights`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from paceline.kernels.jit import REASSOCIATED, never_inlined, reassociated
from paceline.kernels.keys import Keys
from paceline.kernels.losses import ROWS_PER_LOG, measure_row
from paceline.kernels.private import names_of
from paceline.kernels.row_loop import ROWS_AHEAD, fetch_ahead, row_rule
from paceline.kernels.rules import Table, memory, quick_update, quick_weight, weight
from paceline.kernels.steps import gradient_rule
from paceline.kernels.tables import prefetch_row, row_width, vector_stride
from paceline.kernels.vectors import Lanes, Vectors, filled, load, store

Floats = NDArray[np.float32]
Offsets = NDArray[np.int64]

ZERO, ONE = np.uint64(0), np.uint64(1)
HALF = np.float32(0.5)


class FieldAware(NamedTuple):
    """A field-aware factorization machine, as compiled loops know it: `lanes` are the factors of a key for one field.

    `crossed` is memory to work in, C(g, f) of a row [fields, fields, factors], flat.
    """

    loss: Any
    lanes: Lanes
    num_fields: int
    crossed: Floats


@register_jitable(forceinline=True, **REASSOCIATED)
def _cross(model: Any, numbers: Floats, at: Any, field: Any, x: Any) -> None:
    """Add a nonzero, whose factors begin at `numbers[at]`, to C."""
    lanes = model.lanes
    length, num_fields = np.uint64(len(lanes)), np.uint64(model.num_fields)
    to = field * length
    for first in range(at, at + num_fields * length, length):
        store(model.crossed, to, load(model.crossed, to, lanes) + load(numbers, first, lanes) * x)
        to += num_fields * length


@register_jitable(forceinline=True, **REASSOCIATED)
def _meet(model: Any, numbers: Floats, at: Any, field: Any, x: Any) -> Any:
    """Twice what a nonzero and all others have together, as a vector whose sum it is."""
    lanes = model.lanes
    length, num_fields = np.uint64(len(lanes)), np.uint64(model.num_fields)
    own = load(numbers, at + field * length, lanes)
    products = filled(np.float32(0), lanes) - own * own * x
    crossed = field * num_fields * length
    for first in range(ZERO, num_fields * length, length):
        products += load(numbers, at + first, lanes) * load(model.crossed, crossed + first, lanes)
    return products * x


@reassociated
def gradient(model: Any, offsets: Offsets, local: NDArray[np.uint32], values: Floats, labels: NDArray[Any],
             row_weights: Any, fields: Any, weights: Floats, out: Floats) -> float:  # fmt: skip
    """Sum the rows' gradients into `out` [number, 1 + fields · factors], from `weights`; the sum of their losses."""
    # The same machine code, and so the same bits, for every caller.
    never_inlined()
    lanes = model.lanes
    length = np.uint64(len(lanes))
    size = np.uint64(model.num_fields) * length
    begin = np.uint64(offsets[0])
    losses, product = 0.0, 1.0
    for i in range(weights.size):
        out[i] = np.float32(0)
    for row in range(labels.size):
        start, stop = np.uint64(offsets[row]) - begin, np.uint64(offsets[row + 1]) - begin
        z = weights[0]
        model.crossed[:] = np.float32(0)
        for k in range(start, stop):
            at = np.uint64(local[k]) * (size + ONE)
            z += weights[at] * values[k]
            _cross(model, weights, at + ONE, np.uint64(fields[k]), values[k])
        pairs = filled(np.float32(0), lanes)
        for k in range(start, stop):
            at = np.uint64(local[k]) * (size + ONE)
            pairs += _meet(model, weights, at + ONE, np.uint64(fields[k]), values[k])
        z += HALF * np.sum(pairs)
        slope, value, factor = measure_row(model.loss, z, np.float32(labels[row]), row_weights, row)
        product *= factor
        if row % ROWS_PER_LOG == ROWS_PER_LOG - 1:
            losses += np.log(product)
            product = 1.0
        losses += value
        out[0] += slope
        for k in range(start, stop):
            at, by = np.uint64(local[k]) * (size + ONE), slope * values[k]
            out[at] += by
            field = np.uint64(fields[k]) * length
            at += ONE
            for first in range(ZERO, size, length):
                rest = load(model.crossed, field * np.uint64(model.num_fields) + first, lanes)
                if first == field:
                    rest -= load(weights, at + first, lanes) * values[k]
                store(out, at + first, load(out, at + first, lanes) + rest * by)
    return losses + np.log(product)


gradient_rule(FieldAware, gradient)


def train_row(model: Any, arrays: Any, block: Any, rows: Any, i: Any, bias: Any, private: Any) -> Any:
    """One update by row `rows[i]` of a block, in place; the row's loss as value and factor (`row_loop.py`)."""
    groups, table, lanes = arrays.groups, arrays.numbers, model.lanes
    rule, factor_rule, bias_rule = groups[0].rule, groups[1].rule, arrays.bias_groups[0].rule
    vectors, length, num_fields = Vectors(table, lanes), np.uint64(len(lanes)), np.uint64(model.num_fields)
    width, first_factor, size = row_width(groups), ONE + memory(rule), num_fields * length
    values, fields, row = block.values, block.fields, rows[i]
    names, shift = names_of(private, block, rows, i)
    start, stop = np.uint64(block.offsets[row]), np.uint64(block.offsets[row + 1])
    z = quick_weight(bias_rule, table, bias * width, ONE)
    model.crossed[:] = np.float32(0)
    for k in range(start, stop):
        at = np.uint64(names[k + shift]) * width
        z += quick_weight(rule, table, at, ONE) * values[k]
        _cross(model, table, at + first_factor, np.uint64(fields[k]), values[k])
    pairs = filled(np.float32(0), lanes)
    for k in range(start, stop):
        at = np.uint64(names[k + shift]) * width + first_factor
        pairs += _meet(model, table, at, np.uint64(fields[k]), values[k])
    z += HALF * np.sum(pairs)
    slope, value, factor = measure_row(model.loss, z, np.float32(block.labels[row]), block.weights, row)
    # Here, because the processor has time for it while it waits for the slope.
    fetch_ahead(arrays, block, rows, i, private)
    quick_update(bias_rule, table, bias * width, ONE, slope)
    for k in range(start, stop):
        at = np.uint64(names[k + shift]) * width
        by, field = slope * values[k], np.uint64(fields[k]) * length
        quick_update(rule, table, at, ONE, by)
        at += first_factor
        for first in range(ZERO, size, length):
            rest = load(model.crossed, field * num_fields + first, lanes)
            if first == field:
                rest -= load(table, at + first, lanes) * values[k]
            quick_update(factor_rule, vectors, at + first, vector_stride(factor_rule, lanes, first, size), rest * by)
    return value, factor


row_rule(FieldAware, train_row)


@reassociated
def score(model: Any, groups: Any, bias_groups: Any, table: Table, num_keys: int, offsets: Offsets, keys: Keys,
          values: Floats, fields: NDArray[np.uint16], out: Floats) -> None:  # fmt: skip
    """The scores of rows into `out` [rows]; the bias is key `num_keys`, and larger ones are unknown and ignored."""
    rule = groups[0].rule
    width, first_factor = row_width(groups), ONE + memory(rule)
    known = np.uint64(num_keys)
    for row in range(out.size):
        if row + ROWS_AHEAD < out.size:
            for k in range(np.uint64(offsets[row + ROWS_AHEAD]), np.uint64(offsets[row + ROWS_AHEAD + 1])):
                if np.uint64(keys[k]) < known:
                    prefetch_row(groups, table, np.uint64(keys[k]) * width)
        z = weight(bias_groups[0].rule, table, known * width, ONE)
        start, stop = np.uint64(offsets[row]), np.uint64(offsets[row + 1])
        model.crossed[:] = np.float32(0)
        for k in range(start, stop):
            at = np.uint64(keys[k]) * width
            if np.uint64(keys[k]) < known:
                z += weight(rule, table, at, ONE) * values[k]
                _cross(model, table, at + first_factor, np.uint64(fields[k]), values[k])
        pairs = filled(np.float32(0), model.lanes)
        for k in range(start, stop):
            at = np.uint64(keys[k]) * width + first_factor
            if np.uint64(keys[k]) < known:
                pairs += _meet(model, table, at, np.uint64(fields[k]), values[k])
        out[row] = z + HALF * np.sum(pairs)
