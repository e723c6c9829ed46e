"""How does a linear model get from where training left it to the optimum? By Newton's method, in float64.

The objective is the weighted mean of the rows' losses + l2 / 2 · |weights|², over scaled values and without the bias.
Each step solves for Newton's direction by conjugate gradients, from products with the matrix alone.

With l2 = 0, there can be many optima, or none at finite weights. The search begins at weights of 0 and never leaves the
space that the rows span, so least squares ends at the smallest weights. Other losses get a tiny l2 for values in units
of their deviation. Columns are centred, because the bias, which has no penalty, would otherwise count as a weight.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from sklearn.exceptions import ConvergenceWarning

from paceline.data.sparse.scaling import Scaling
from paceline.settings import LossConfig
from paceline.sklearn.learned import Doubles, Numbers
from paceline.sklearn.sample import Sample
from paceline.sklearn.smooth import BOUNDED, OF_DIFFERENCES, SMOOTH, Measured

MOST_STEPS = 100
MOST_PRODUCTS = 1000
MOST_HALVINGS = 40
# Relative to gradients, and slopes of rows, where all parameters are 0.
TOLERANCE = 1e-13
GOOD_ENOUGH = 1e-6
# Where the objective is nearly flat, small gradients are not enough: parameters must not move any more.
STILL = 1e-10
ENOUGH_DESCENT = 1e-4
ROUNDING = 1e-12
NOISE = 1e-16
# The l2 where there is none, relative to how much the loss bends if all rows have the best constant score.
TINY_L2 = 1e-7
LEAST_BEND = 1e-3
# A column whose deviation is at most this share of its mean is constant.
CONSTANT = 1e-12
CHUNK_CELLS = 1 << 20


class At(NamedTuple):
    """A point: the parameters [features + 1, outputs], the objective there, and its gradient."""

    table: Doubles
    objective: float
    gradient: Doubles
    measured: Measured


class Problem:
    """The objective over rows. Its parameters are those of centred columns, each in a `unit`."""

    def __init__(self, rows: Sample, loss: LossConfig, outputs: int, unit: Doubles, l2: float) -> None:
        self._shares = _shares(rows)[:, None]
        self._matrix, self._transposed = rows.matrix, rows.matrix.T
        self._targets = rows.targets.astype(np.float64)[:, None]
        self._loss, self._unit, self._l2 = loss, unit, l2
        self._centre = np.asarray(self._transposed @ self._shares)
        zero = self.at(np.zeros((len(unit) + 1, outputs)))
        self.height = abs(zero.objective)
        self.steepness = max(_size(zero.gradient), float((self._shares * abs(zero.measured.slopes)).sum(axis=0).max()))

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
        into = np.vstack([found + self._l2 * table[:-1], total])
        # Scores of classes may all be moved by the same amount, which must not begin by rounding.
        return into - into.mean(axis=1, keepdims=True) if into.shape[1] > 1 else into


def finish(rows: Sample, scaling: Scaling, loss: LossConfig, l2: float, trained: Numbers) -> Doubles:
    """The parameters [features + 1, outputs] of scaled values at the optimum, from those where training ended."""
    if loss.name not in OF_DIFFERENCES:
        return _finish(rows, scaling, loss, l2, trained)
    # Targets far from 0 would make all slopes that count look small.
    mean = float(_shares(rows) @ rows.targets)
    found = _finish(rows._replace(targets=rows.targets - mean), scaling, loss, l2, trained - _bias(mean, len(trained)))
    return found + _bias(mean, len(found))


def _bias(bias: float, size: int) -> Doubles:
    """Parameters of one output of which all but the bias are 0."""
    return np.append(np.zeros(size - 1), bias)[:, None]


def _finish(rows: Sample, scaling: Scaling, loss: LossConfig, l2: float, trained: Numbers) -> Doubles:
    rows = rows._replace(matrix=_summed(rows.matrix))
    features, outputs = rows.matrix.shape[1], trained.shape[1]
    keys = np.array(scaling.keys, np.int64)
    scaled, centres = np.ones((features, 1)), np.zeros((features, 1))
    scaled[keys, 0], centres[keys, 0] = 1 / np.array(scaling.scales), scaling.centres
    means = np.asarray(rows.matrix.T @ _shares(rows))[:, None]
    moved = scaled * (means - centres)
    # At first all weights are 0, so that the result does not depend on where training ended.
    alone = Problem(rows._replace(matrix=np.empty((len(rows.targets), 0))), loss, outputs, scaled[:0], 0)
    bias = np.asarray(trained[-1:] + (moved * trained[:-1]).sum(axis=0), np.float64)
    constant = _descend(alone, bias - bias.mean() if outputs > 1 else bias)
    tiny = l2 == 0 and loss.name not in BOUNDED
    unit = _per_deviation(rows, means) if tiny else scaled
    problem = Problem(rows, loss, outputs, unit, TINY_L2 * _mean_bend(alone, constant) if tiny else l2)
    at = _descend(problem, np.vstack([np.zeros((features, outputs)), constant.table]))
    if _size(at.gradient) > GOOD_ENOUGH * problem.steepness:
        warnings.warn("the optimum was not reached; choose a larger l2", ConvergenceWarning, stacklevel=2)
    weights = at.table[:-1] * (unit / scaled)
    return np.vstack([weights, at.table[-1] - (moved * weights).sum(axis=0)])


def _summed(matrix: Any) -> Any:
    """The matrix with each column at most once per row: the deviation of a column does not follow from the parts of its
    values.
    """
    if not scipy.sparse.issparse(matrix) or matrix.has_canonical_format:
        return matrix
    summed = matrix.copy()
    summed.sum_duplicates()
    return summed


def _shares(rows: Sample) -> Doubles:
    """How much each row counts; 1 together."""
    weights = np.ones(len(rows.targets)) if rows.weights is None else rows.weights
    shares: Doubles = weights / weights.sum()
    return shares


def _per_deviation(rows: Sample, means: Doubles) -> Doubles:
    """1 / the deviation of each column, and 0 for those that are constant."""
    shares, squares = _shares(rows), np.zeros(len(means))
    if scipy.sparse.issparse(rows.matrix):
        matrix = rows.matrix
        counts, keys = np.repeat(shares, np.diff(matrix.indptr)), matrix.indices
        squares += np.bincount(keys, counts * (matrix.data - means[keys, 0]) ** 2, len(means))
        squares += np.maximum(1 - np.bincount(keys, counts, len(means)), 0) * means[:, 0] ** 2
    else:
        step = max(1, CHUNK_CELLS // len(means))
        for first in range(0, len(shares), step):
            part = slice(first, first + step)
            squares += shares[part] @ (rows.matrix[part] - means[:, 0]) ** 2
    deviations = np.sqrt(squares)[:, None]
    return np.divide(1, deviations, out=np.zeros_like(means), where=deviations > CONSTANT * np.abs(means))


def _mean_bend(problem: Problem, at: At) -> float:
    """The second derivative of the mean loss by the bias, but not much less than that of most rows."""
    own = np.eye(at.table.shape[1])[:, None]
    return max(LEAST_BEND, float(np.mean([(problem.bent(at, change) * change).sum() for change in own])))


def _descend(problem: Problem, start: Doubles) -> At:
    """The lowest point that steps from `start` lead to."""
    at, moved = problem.at(start), np.inf
    for _ in range(MOST_STEPS):
        steep = _size(at.gradient) / problem.steepness if problem.steepness else 0
        if steep <= NOISE or (steep <= TOLERANCE and moved <= STILL * _size(at.table)):
            break
        if (found := _step(problem, at)) is None:
            break
        moved, at = _size(found.table - at.table), found
    return at


def _step(problem: Problem, at: At) -> At | None:
    """The next point; None if rounding allows no progress."""
    direction, size = _direction(problem, at), 1.0
    descent = float((at.gradient * direction).sum())
    for _ in range(MOST_HALVINGS):
        found = problem.at(at.table - size * direction)
        if found.objective <= at.objective - ENOUGH_DESCENT * size * descent:
            return found
        # Near the optimum the objective cannot tell any more, but its gradient can.
        same = found.objective <= at.objective + ROUNDING * max(problem.height, abs(at.objective))
        if same and _size(found.gradient) < _size(at.gradient) / 2:
            return found
        size /= 2
    return None


def _direction(problem: Problem, at: At) -> Doubles:
    """Newton's direction, by conjugate gradients: the more precise, the nearer the optimum is."""
    found, left = np.zeros_like(at.table), at.gradient.copy()
    along, before = left.copy(), float((left * left).sum())
    enough = max(before * min(0.25, before**0.5), (NOISE * problem.steepness) ** 2)
    most = 0.0
    for _ in range(MOST_PRODUCTS):
        bent = problem.bent(at, along)
        curvature, size = float((along * bent).sum()), float((along * along).sum())
        # Beside other directions, this one is flat.
        if curvature <= NOISE * most * size:
            break
        most = max(most, curvature / size)
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
