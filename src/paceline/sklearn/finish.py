"""How does a linear model get from where training left it to the optimum? By Newton's method, in float64.

The objective is the weighted mean of the rows' losses + l2 / 2 · |weights|², over scaled values and without the bias.
Each step solves for Newton's direction by conjugate gradients, from products with the matrix alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import expit, logsumexp, softmax
from sklearn.exceptions import ConvergenceWarning

from paceline.data.sparse.scaling import Scaling
from paceline.settings import LossConfig
from paceline.sklearn.learned import Doubles, Numbers
from paceline.sklearn.sample import Sample

MOST_STEPS = 100
MOST_PRODUCTS = 1000
MOST_HALVINGS = 40
# Relative to the first gradient.
TOLERANCE = 1e-13
GOOD_ENOUGH = 1e-6
ENOUGH_DESCENT = 1e-4
ROUNDING = 1e-12

Bend = Callable[[Doubles], Doubles]


class Measured(NamedTuple):
    """The losses of rows, their slopes by the scores [rows, outputs], and the product of the second derivatives with
    changes of the scores.
    """

    losses: Doubles
    slopes: Doubles
    bend: Bend


def _squared(scores: Doubles, targets: Doubles, loss: LossConfig) -> Measured:
    away = scores - targets
    return Measured(away[:, 0] ** 2 / 2, away, lambda change: change)


def _huber(scores: Doubles, targets: Doubles, loss: LossConfig) -> Measured:
    away = scores - targets
    slopes, near = np.clip(away, -loss.delta, loss.delta), np.abs(away) <= loss.delta
    return Measured((slopes * (away - slopes / 2))[:, 0], slopes, lambda change: change * near)


def _poisson(scores: Doubles, targets: Doubles, loss: LossConfig) -> Measured:
    means = np.exp(np.minimum(scores, 60))
    return Measured((means - targets * scores)[:, 0], means - targets, lambda change: change * means)


def _logistic(scores: Doubles, targets: Doubles, loss: LossConfig) -> Measured:
    shares = expit(scores)
    losses = np.logaddexp(0, scores) - targets * scores
    return Measured(losses[:, 0], shares - targets, lambda change: change * shares * (1 - shares))


def _squared_hinge(scores: Doubles, targets: Doubles, loss: LossConfig) -> Measured:
    signs = 2 * targets - 1
    missing = np.maximum(1 - signs * scores, 0)
    return Measured(missing[:, 0] ** 2, -2 * signs * missing, lambda change: 2 * change * (missing > 0))


def _softmax(scores: Doubles, targets: Doubles, loss: LossConfig) -> Measured:
    rows, classes = np.arange(len(scores)), targets[:, 0].astype(np.int64)
    shares = softmax(scores, axis=1)
    slopes = shares.copy()
    slopes[rows, classes] -= 1

    def bend(change: Doubles) -> Doubles:
        found: Doubles = shares * (change - (shares * change).sum(axis=1, keepdims=True))
        return found

    return Measured(logsumexp(scores, axis=1) - scores[rows, classes], slopes, bend)


# The losses whose slopes do not jump.
SMOOTH: dict[str, Callable[[Doubles, Doubles, LossConfig], Measured]] = {
    "squared": _squared, "huber": _huber, "poisson": _poisson, "logistic": _logistic, "squared-hinge": _squared_hinge,
    "softmax": _softmax,
}  # fmt: skip


class At(NamedTuple):
    """A point: the parameters [features + 1, outputs], the objective there, and its gradient."""

    table: Doubles
    objective: float
    gradient: Doubles
    measured: Measured


class Problem:
    """The objective over rows of a matrix."""

    def __init__(self, rows: Sample, scaling: Scaling, loss: LossConfig, l2: float) -> None:
        count, features = rows.matrix.shape
        shares = np.ones(count) if rows.weights is None else rows.weights
        self._shares = (shares / shares.sum())[:, None]
        self._matrix, self._transposed = rows.matrix, rows.matrix.T
        self._targets = rows.targets.astype(np.float64)[:, None]
        self._loss, self._l2 = loss, l2
        keys = np.array(scaling.keys, np.int64)
        self._unit, self._centre = np.ones((features, 1)), np.zeros((features, 1))
        self._unit[keys, 0], self._centre[keys, 0] = 1 / np.array(scaling.scales), scaling.centres

    def at(self, table: Doubles) -> At:
        measured = SMOOTH[self._loss.name](self._scores(table), self._targets, self._loss)
        objective = float(self._shares[:, 0] @ measured.losses) + self._l2 / 2 * float((table[:-1] ** 2).sum())
        return At(table, objective, self._into(measured.slopes, table), measured)

    def bent(self, at: At, change: Doubles) -> Doubles:
        """The product of the objective's second derivatives with a change of the parameters."""
        return self._into(at.measured.bend(self._scores(change)), change)

    def _scores(self, table: Doubles) -> Doubles:
        weights = table[:-1] * self._unit
        found: Doubles = np.asarray(self._matrix @ weights) + (table[-1] - (self._centre * weights).sum(axis=0))
        return found

    def _into(self, slopes: Doubles, table: Doubles) -> Doubles:
        """What slopes of scores mean for the parameters, with the slope of the penalty."""
        counted = self._shares * slopes
        total = counted.sum(axis=0)
        found = self._unit * (np.asarray(self._transposed @ counted) - self._centre * total)
        return np.vstack([found + self._l2 * table[:-1], total])


def finish(problem: Problem, start: Numbers) -> Doubles:
    """The parameters [features + 1, outputs] at the optimum, from those where training ended."""
    at = problem.at(start.astype(np.float64))
    first = _size(problem.at(np.zeros_like(at.table)).gradient)
    for _ in range(MOST_STEPS):
        if _size(at.gradient) <= TOLERANCE * first or (found := _step(problem, at)) is None:
            break
        at = found
    if _size(at.gradient) > GOOD_ENOUGH * first:
        warnings.warn("the optimum was not reached; choose a larger l2", ConvergenceWarning, stacklevel=2)
    # Scores of classes may all be moved by the same amount.
    return at.table - at.table.mean(axis=1, keepdims=True) if at.table.shape[1] > 1 else at.table


def _step(problem: Problem, at: At) -> At | None:
    """The next point; None if rounding allows no progress."""
    direction, size = _direction(problem, at), 1.0
    descent = float((at.gradient * direction).sum())
    for _ in range(MOST_HALVINGS):
        found = problem.at(at.table - size * direction)
        if found.objective <= at.objective - ENOUGH_DESCENT * size * descent:
            return found
        # Near the optimum the objective cannot tell any more, but its gradient can.
        same = found.objective <= at.objective + ROUNDING * abs(at.objective)
        if same and _size(found.gradient) < _size(at.gradient) / 2:
            return found
        size /= 2
    return None


def _direction(problem: Problem, at: At) -> Doubles:
    """Newton's direction, by conjugate gradients: the more precise, the nearer the optimum is."""
    found, left = np.zeros_like(at.table), at.gradient.copy()
    along, before = left.copy(), float((left * left).sum())
    enough = before * min(0.25, before**0.5)
    for _ in range(MOST_PRODUCTS):
        bent = problem.bent(at, along)
        curvature = float((along * bent).sum())
        if curvature <= 0:
            break
        length = before / curvature
        found += length * along
        left -= length * bent
        now = float((left * left).sum())
        if now <= enough:
            break
        along, before = left + now / before * along, now
    return found if found.any() else at.gradient


def _size(gradient: Doubles) -> float:
    return float(np.abs(gradient).max())
