"""What did a fit learn? Weights, biases and factors in float64, for values as the source has them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.data.sparse.scaling import Scaling

Doubles = NDArray[np.float64]
Numbers = NDArray[np.floating[Any]]


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


def of_linear(table: Numbers, scaling: Scaling) -> Learned:
    """What a table of weights [features + 1, outputs] says, which were learned from scaled values."""
    weights, bias = table[:-1].T.astype(np.float64), table[-1].astype(np.float64)
    keys, scales, centres = _arrays(scaling)
    weights[:, keys] /= scales
    return Learned(weights, bias - weights[:, keys] @ centres)


def of_fm(table: Numbers, scaling: Scaling) -> Learned:
    """What a table [features + 1, 1 + dim] of a factorization machine says, which was learned from scaled values.

    With x' = (x - c) / s, the products of factors give terms that are linear in x, and constant ones.
    """
    linear, factors = of_linear(table[:, :1], scaling), table[:-1, 1:].astype(np.float64)
    keys, scales, centres = _arrays(scaling)
    factors[keys] /= scales[:, None]
    moved = factors[keys] * centres[:, None]
    total = moved.sum(axis=0)
    weights = linear.weights - factors @ total
    weights[0, keys] += (factors[keys] * moved).sum(axis=1)
    return Learned(weights, linear.bias + (total @ total - (moved**2).sum()) / 2, factors)


def _arrays(scaling: Scaling) -> tuple[NDArray[np.int64], Doubles, Doubles]:
    return np.array(scaling.keys, np.int64), np.array(scaling.scales), np.array(scaling.centres)
