"""What did a fit learn? Weights, biases and factors in float64, for values as the source has them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.data.sparse.scaling import Scaling

Doubles = NDArray[np.float64]
Numbers = NDArray[np.floating[Any]]
PART_KEYS = 1 << 18


class Values(Protocol):
    """The values of a table's parameters, [keys, columns]: an array, or what reads a slice of keys when asked for."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, keys: slice) -> Numbers: ...


class Learned(NamedTuple):
    """The parameters of a model: `weights` [outputs, features], `bias` [outputs] and, for factorization machines,
    `factors` [features, dim].
    """

    weights: Doubles
    bias: Doubles
    factors: Doubles | None = None

    def scores(self, rows: Any) -> Doubles:
        """The scores [rows, outputs] of a matrix. Large terms of factors cancel, which takes float64."""
        rows = rows.astype(np.float64)
        found = np.asarray(rows @ self.weights.T) + self.bias
        if self.factors is not None:
            squares = rows.multiply(rows).tocsr() if hasattr(rows, "multiply") else rows * rows
            sums = np.asarray(rows @ self.factors)
            found += ((sums**2 - np.asarray(squares @ self.factors**2)).sum(axis=1) / 2)[:, None]
        result: Doubles = found
        return result


def parts_of(table: Values) -> Iterator[tuple[slice, Numbers]]:
    """Slices of keys and their values: a copy of all values would take as much memory as a part of the table."""
    size = table.shape[0]
    for start, stop in pairwise([*range(0, size, PART_KEYS), size]):
        yield slice(start, stop), table[start:stop]


def of_linear(table: Values, scaling: Scaling) -> Learned:
    """What a table of weights [features + 1, outputs] says, which were learned from scaled values."""
    (values,) = _doubles(table, [slice(None)])
    weights, bias = values[:-1].T, values[-1]
    return Learned(weights, _unscale(weights, bias, scaling))


def _doubles(table: Values, columns: list[slice]) -> list[Doubles]:
    """The values of some columns in float64."""
    found = [np.empty((table.shape[0], len(range(*some.indices(table.shape[1]))))) for some in columns]
    for keys, part in parts_of(table):
        for array, some in zip(found, columns, strict=True):
            array[keys] = part[:, some]
    return found


def _unscale(weights: Doubles, bias: Doubles, scaling: Scaling) -> Doubles:
    """Change the weights [outputs, features] to those for values of the source, in place; returns the bias."""
    keys, scales, centres = _arrays(scaling)
    weights[:, keys] /= scales
    found: Doubles = bias - weights[:, keys] @ centres
    return found


def of_fm(table: Values, scaling: Scaling) -> Learned:
    """What a table [features + 1, 1 + dim] of a factorization machine says, which was learned from scaled values.

    With x' = (x - c) / s, the products of factors give terms that are linear in x, and constant ones.
    """
    values, factors = _doubles(table, [slice(0, 1), slice(1, None)])
    weights, factors = values[:-1].T, factors[:-1]
    bias = _unscale(weights, values[-1], scaling)
    keys, scales, centres = _arrays(scaling)
    factors[keys] /= scales[:, None]
    moved = factors[keys] * centres[:, None]
    total = moved.sum(axis=0)
    if centres.any():
        weights -= factors @ total
        weights[0, keys] += (factors[keys] * moved).sum(axis=1)
    return Learned(weights, bias + (total @ total - (moved**2).sum()) / 2, factors)


def _arrays(scaling: Scaling) -> tuple[NDArray[np.int64], Doubles, Doubles]:
    return np.array(scaling.keys, np.int64), np.array(scaling.scales), np.array(scaling.centres)
