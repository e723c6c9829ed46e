"""The loops of field-weighted factorization machines (Pan, Xu, Ruiz, Zhao, Pan, Sun and Lu, 2018, "Field-weighted
Factorization Machines for Click-Through Rate Prediction in Display Advertising"), under any loss. How much two keys
have together depends on their fields:

    z = b + Σᵢ wᵢ xᵢ + Σᵢ<ⱼ r(fᵢ, fⱼ) ⟨vᵢ, vⱼ⟩ xᵢ xⱼ,    where fᵢ is the field of nonzero i and r is symmetric.

With S(f) = Σ xⱼ vⱼ over the nonzeros j of field f, and T(f) = Σ_g r(f, g) S(g),

    Σᵢ<ⱼ … = ½ Σᵢ xᵢ ⟨vᵢ, T(fᵢ) − r(fᵢ, fᵢ) xᵢ vᵢ⟩,    ∂z/∂vᵢ = xᵢ (T(fᵢ) − r(fᵢ, fᵢ) xᵢ vᵢ),
    ∂z/∂r(f, g) = ⟨S(f), S(g)⟩ for f < g,    ∂z/∂r(f, f) = ½ (|S(f)|² − Σ |xᵢ vᵢ|²) over the nonzeros i of field f.

`field_weights` is r [fields, fields], flat, of which only r(f, g) with f ≤ g is used.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from paceline.kernels.jit import REASSOCIATED, compiled, never_inlined, reassociated
from paceline.kernels.losses import ROWS_PER_LOG, measure_row
from paceline.kernels.vectors import Lanes, filled, lanes, load, store

Floats = NDArray[np.float32]
Offsets = NDArray[np.int64]

ZERO, ONE = np.uint64(0), np.uint64(1)
HALF = np.float32(0.5)
# How many weights of pairs of one field are updated at once. More than fit into a vector register cost nothing.
TOGETHER = lanes(16)


class FieldWeighted(NamedTuple):
    """A factorization machine with field weights, as compiled loops know it: `lanes` are its factors.

    Memory to work in, flat. Of a row: S and T [fields, factors], S with its sides exchanged [factors, padded fields],
    and the squares that r(f, f) does not count [fields]. Of a batch: r with both halves [fields, fields], and the
    gradient of r [fields, padded fields]. `padded` is a multiple of the weights that are updated at once.
    """

    loss: Any
    lanes: Lanes
    num_fields: int
    padded: int
    sums: Floats
    crossed: Floats
    turned: Floats
    squares: Floats
    weights: Floats
    slopes: Floats

    @staticmethod
    def make(loss: Any, lanes: Lanes, num_fields: int) -> FieldWeighted:
        padded = -(-num_fields // len(TOGETHER)) * len(TOGETHER)
        sizes = (
            num_fields * len(lanes), num_fields * len(lanes), len(lanes) * padded, num_fields, num_fields**2,
            num_fields * padded,
        )  # fmt: skip
        return FieldWeighted(loss, lanes, num_fields, padded, *(np.zeros(size, np.float32) for size in sizes))


@register_jitable(**REASSOCIATED)
def _take_weights(model: Any, field_weights: Floats) -> None:
    """Copy r into the model's memory, both halves."""
    num_fields = np.uint64(model.num_fields)
    for f in range(num_fields):
        for g in range(f, num_fields):
            number = field_weights[f * num_fields + g]
            model.weights[f * num_fields + g] = number
            model.weights[g * num_fields + f] = number


@register_jitable(forceinline=True, **REASSOCIATED)
def _score(model: Any, numbers: NDArray[np.uint32], values: Floats, fields: NDArray[np.uint16], start: Any, stop: Any,
           weights: Floats) -> Any:  # fmt: skip
    """The score of a row without its bias; leaves S, T and squares in the model's memory."""
    lanes, num_fields = model.lanes, np.uint64(model.num_fields)
    length = np.uint64(len(lanes))
    model.sums[:] = np.float32(0)
    model.squares[:] = np.float32(0)
    z = np.float32(0)
    for k in range(start, stop):
        at, field = np.uint64(numbers[k]) * (length + ONE), np.uint64(fields[k])
        z += weights[at] * values[k]
        factors = load(weights, at + ONE, lanes) * values[k]
        store(model.sums, field * length, load(model.sums, field * length, lanes) + factors)
        model.squares[field] += np.sum(factors * factors)
    pairs = filled(np.float32(0), lanes)
    for f in range(num_fields):
        crossed = filled(np.float32(0), lanes)
        for g in range(num_fields):
            crossed += load(model.sums, g * length, lanes) * model.weights[f * num_fields + g]
        store(model.crossed, f * length, crossed)
        pairs += load(model.sums, f * length, lanes) * crossed
        z -= HALF * model.weights[f * num_fields + f] * model.squares[f]
    return z + HALF * np.sum(pairs)


@register_jitable(forceinline=True, **REASSOCIATED)
def _add_slopes(model: Any, slope: Any) -> None:
    """Add the gradient of r by a row, whose S and squares are in the model's memory; only that of r(f, g) with f ≤ g
    is used. That of r(f, f) is exactly 0 if field f occurs once, because AdaGrad would make steps of what is not.
    """
    lanes, num_fields, padded = model.lanes, np.uint64(model.num_fields), np.uint64(model.padded)
    length, step = np.uint64(len(lanes)), np.uint64(len(TOGETHER))
    for f in range(num_fields):
        for i in range(length):
            model.turned[i * padded + f] = model.sums[f * length + i]
    for f in range(num_fields):
        of_field = load(model.sums, f * length, lanes)
        twice = model.slopes[f * padded + f] + slope * (np.sum(of_field * of_field) - model.squares[f])
        for first in range(f // step * step, padded, step):
            total = load(model.slopes, f * padded + first, TOGETHER)
            for i in range(length):
                total += load(model.turned, i * padded + first, TOGETHER) * (slope * model.sums[f * length + i])
            store(model.slopes, f * padded + first, total)
        model.slopes[f * padded + f] = twice


@reassociated
def gradient(model: Any, offsets: Offsets, local: NDArray[np.uint32], values: Floats, labels: NDArray[Any],
             row_weights: Any, fields: NDArray[np.uint16], weights: Floats, field_weights: Floats, out: Floats,
             field_out: Floats) -> float:  # fmt: skip
    """Sum the rows' gradients into `out` [number, 1 + factors], from `weights`, and into `field_out`, from
    `field_weights`; returns the sum of their losses.
    """
    # The same machine code, and so the same bits, for every caller.
    never_inlined()
    lanes, num_fields = model.lanes, np.uint64(model.num_fields)
    length = np.uint64(len(lanes))
    begin = np.uint64(offsets[0])
    losses, product = 0.0, 1.0
    out[: weights.size] = np.float32(0)
    _take_weights(model, field_weights)
    model.slopes[:] = np.float32(0)
    for row in range(labels.size):
        start, stop = np.uint64(offsets[row]) - begin, np.uint64(offsets[row + 1]) - begin
        z = weights[0] + _score(model, local, values, fields, start, stop, weights)
        slope, value, factor = measure_row(model.loss, z, np.float32(labels[row]), row_weights, row)
        product *= factor
        if row % ROWS_PER_LOG == ROWS_PER_LOG - 1:
            losses += np.log(product)
            product = 1.0
        losses += value
        out[0] += slope
        for k in range(start, stop):
            at, field, by = np.uint64(local[k]) * (length + ONE), np.uint64(fields[k]), slope * values[k]
            out[at] += by
            own = model.weights[field * num_fields + field] * values[k]
            rest = load(model.crossed, field * length, lanes) - load(weights, at + ONE, lanes) * own
            store(out, at + ONE, load(out, at + ONE, lanes) + rest * by)
        _add_slopes(model, slope)
    padded = np.uint64(model.padded)
    for f in range(num_fields):
        for g in range(num_fields):
            share = HALF if f == g else np.float32(g > f)
            field_out[f * num_fields + g] = share * model.slopes[f * padded + g]
    return losses + np.log(product)


@compiled
def score(model: Any, offsets: Offsets, numbers: NDArray[np.uint32], values: Floats, fields: NDArray[np.uint16],
          weights: Floats, bias: np.float32, field_weights: Floats, out: Floats) -> None:  # fmt: skip
    """The scores of rows into `out` [rows], from the `weights` of their numbered keys."""
    _take_weights(model, field_weights)
    for row in range(out.size):
        start, stop = np.uint64(offsets[row]), np.uint64(offsets[row + 1])
        out[row] = bias + _score(model, numbers, values, fields, start, stop, weights)
