"""How does a compiled loop call a loss that it does not know?

A loss is a named tuple of its settings, picked by type as optimizers are (`rules.py`). It registers

    measure(loss, score, label)  the slope of a row's loss by its score, and the loss itself in two parts
    link(loss, score)            what a score predicts: a probability, a mean
    curvature(loss)              the most that its second derivative by the score can be

The loss of a row is `value + log(factor)`. A loop multiplies the factors of some rows before it takes one logarithm of
them all, because a logarithm per row is what would take longest. Losses without a logarithm have a factor of 1. Loops
call `measure_row`, which counts a row as much as its weight says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import overload, register_jitable
from numpy.typing import NDArray

from paceline.kernels.jit import REASSOCIATED, compiled
from paceline.kernels.optional import is_missing
from paceline.kernels.rules import picked_by_type

ROWS_PER_LOG = 64  # factors below 2, whose product a double holds

Measure = Callable[[Any, Any, Any], tuple[Any, Any, Any]]
Link = Callable[[Any, Any], Any]

_MEASURES: dict[type, Measure] = {}
_LINKS: dict[type, Link] = {}
_CURVATURES: dict[type, Callable[[Any], Any]] = {}

measure: Measure = picked_by_type(_MEASURES)
link: Link = picked_by_type(_LINKS)
curvature: Callable[[Any], Any] = picked_by_type(_CURVATURES)


def loss_rule(loss: type, measure: Measure, link: Link, curvature: Callable[[Any], Any]) -> None:
    """Let compiled loops use these functions for losses of this type."""
    # The same liberties in every loop, so that all have the same bits.
    jitable = register_jitable(**REASSOCIATED)
    _MEASURES[loss], _LINKS[loss], _CURVATURES[loss] = jitable(measure), jitable(link), jitable(curvature)


def measure_row(loss: Any, score: Any, label: Any, weights: Any, row: Any) -> Any:
    """As `measure`, times the weight of the row, if rows have `weights`. For compiled loops."""
    raise NotImplementedError


@overload(measure_row, jit_options=REASSOCIATED)
def _compile_measure_row(loss, score, label, weights, row):  # type: ignore[no-untyped-def]
    if is_missing(weights):
        return lambda loss, score, label, weights, row: measure(loss, score, label)

    def measure_weighted(loss, score, label, weights, row):  # type: ignore[no-untyped-def]
        slope, value, factor = measure(loss, score, label)
        weight = weights[row]
        return weight * slope, weight * (value + np.log(factor)), np.float32(1)

    return measure_weighted


@compiled
def measure_rows(loss: Any, scores: NDArray[Any], labels: NDArray[Any], weights: Any, slopes: NDArray[Any]) -> float:
    """The slope of each row's loss into `slopes`; returns the sum of the losses. `weights` may be None."""
    losses, product = 0.0, 1.0
    for row in range(scores.size):
        slopes[row], value, factor = measure_row(loss, scores[row], np.float32(labels[row]), weights, row)
        losses += value
        product *= factor
        if row % ROWS_PER_LOG == ROWS_PER_LOG - 1:
            losses += np.log(product)
            product = 1.0
    return losses + np.log(product)


@compiled
def link_rows(loss: Any, scores: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """What each score predicts, into `out`."""
    for row in range(scores.size):
        out[row] = link(loss, scores[row])
