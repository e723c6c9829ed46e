"""How do losses bend? Their values, slopes and second derivatives in float64, for a search by Newton's method."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import expit, logsumexp, softmax

from paceline.settings import LossConfig
from paceline.sklearn.learned import Doubles

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
# Of these, those with a smallest value at finite weights, whatever the rows.
BOUNDED = ("squared",)
# Those of the difference of score and target alone.
OF_DIFFERENCES = ("squared", "huber")
