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
from paceline.kernels.vectors import Lanes, filled, load, store

Floats = NDArray[np.float32]
Offsets = NDArray[np.int64]

ZERO, ONE = np.uint64(0), np.uint64(1)
HALF = np.float32(0.5)


class FieldWeighted(NamedTuple):
    """A field-weighted factorization machine, as compiled loops know it: `lanes` are its factors.

    Memory to work in, flat: S and T of a row [fields, factors], and the squares that r(f, f) does not count [fields].
    """

    loss: Any
    lanes: Lanes
    num_fields: int
    sums: Floats
    crossed: Floats
    squares: Floats

    @staticmethod
    def make(loss: Any, lanes: Lanes, num_fields: int) -> FieldWeighted:
        size = num_fields * len(lanes)
        return FieldWeighted(
            loss, lanes, num_fields, np.zeros(size, np.float32), np.zeros(size, np.float32),
            np.zeros(num_fields, np.float32),
        )  # fmt: skip


@register_jitable(forceinline=True, **REASSOCIATED)
def _weight_of(field_weights: Floats, num_fields: Any, f: Any, g: Any) -> Any:
    return field_weights[min(f, g) * num_fields + max(f, g)]


@register_jitable(forceinline=True, **REASSOCIATED)
def _score(model: Any, numbers: NDArray[np.uint32], values: Floats, fields: NDArray[np.uint16], start: Any, stop: Any,
           weights: Floats, field_weights: Floats) -> Any:  # fmt: skip
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
            crossed += load(model.sums, g * length, lanes) * _weight_of(field_weights, num_fields, f, g)
        store(model.crossed, f * length, crossed)
        pairs += load(model.sums, f * length, lanes) * crossed
        z -= HALF * _weight_of(field_weights, num_fields, f, f) * model.squares[f]
    return z + HALF * np.sum(pairs)


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
    field_out[:] = np.float32(0)
    for row in range(labels.size):
        start, stop = np.uint64(offsets[row]) - begin, np.uint64(offsets[row + 1]) - begin
        z = weights[0] + _score(model, local, values, fields, start, stop, weights, field_weights)
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
            own = _weight_of(field_weights, num_fields, field, field) * values[k]
            rest = load(model.crossed, field * length, lanes) - load(weights, at + ONE, lanes) * own
            store(out, at + ONE, load(out, at + ONE, lanes) + rest * by)
        for f in range(num_fields):
            of_field = load(model.sums, f * length, lanes)
            field_out[f * num_fields + f] += HALF * slope * (np.sum(of_field * of_field) - model.squares[f])
            for g in range(f + ONE, num_fields):
                field_out[f * num_fields + g] += slope * np.sum(of_field * load(model.sums, g * length, lanes))
    return losses + np.log(product)


@compiled
def score(model: Any, offsets: Offsets, numbers: NDArray[np.uint32], values: Floats, fields: NDArray[np.uint16],
          weights: Floats, bias: np.float32, field_weights: Floats, out: Floats) -> None:  # fmt: skip
    """The scores of rows into `out` [rows], from the `weights` of their numbered keys."""
    for row in range(out.size):
        start, stop = np.uint64(offsets[row]), np.uint64(offsets[row + 1])
        out[row] = bias + _score(model, numbers, values, fields, start, stop, weights, field_weights)
