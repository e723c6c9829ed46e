"""Losses: one class each, a named tuple of its settings, with its formula.

A loss gives, for a row with score z and label y, the slope dl/dz, the value l, and its link, which turns a score into a
prediction. Compiled loops pick these functions by type (`kernels/losses.py`). `TASK_OF_LOSS` in `registry.py` says
which labels a loss is for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.losses import link_rows, loss_rule, measure_rows

ONE = np.float32(1)


class Logistic(NamedTuple):
    """l = log(1 + exp(−y z)) for labels y of ±1, given as 0 and 1; the link is the probability of label 1, σ(z).

    With s = exp(−|z|) the loss is max(z, 0) − z · label + log(1 + s), which never overflows.
    """


class Squared(NamedTuple):
    """l = (z − y)² / 2; the link is z itself."""


def _measure_logistic(loss: Any, score: Any, label: Any) -> tuple[Any, Any, Any]:
    shrunk = np.exp(-abs(score))
    share = ONE / (ONE + shrunk) if score >= 0 else shrunk / (ONE + shrunk)
    return share - label, max(score, np.float32(0)) - score * label, ONE + shrunk


def _link_logistic(loss: Any, score: Any) -> Any:
    shrunk = np.exp(-abs(score))
    return ONE / (ONE + shrunk) if score >= 0 else shrunk / (ONE + shrunk)


def _curvature_logistic(loss: Any) -> Any:
    return ONE / np.float32(4)


def _measure_squared(loss: Any, score: Any, label: Any) -> tuple[Any, Any, Any]:
    away = score - label
    return away, away * away / np.float32(2), ONE


def _link_squared(loss: Any, score: Any) -> Any:
    return score


def _curvature_squared(loss: Any) -> Any:
    return ONE


loss_rule(Logistic, _measure_logistic, _link_logistic, _curvature_logistic)
loss_rule(Squared, _measure_squared, _link_squared, _curvature_squared)

LOSSES: dict[str, Any] = {"logistic": Logistic(), "squared": Squared()}


def total_loss(loss: Any, scores: NDArray[np.float32], labels: NDArray[Any]) -> float:
    """The sum of the losses of rows with these scores, in float64.

    >>> round(total_loss(Logistic(), np.zeros(2, np.float32), np.array([0, 1], np.uint8)) / 2, 4)
    0.6931
    """
    return measure_rows(loss, scores.astype(np.float64), labels, np.empty(len(scores)))


def predictions(loss: Any, scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """What scores predict.

    >>> predictions(Logistic(), np.zeros(1, np.float32)).tolist()
    [0.5]
    """
    out = np.empty_like(scores)
    link_rows(loss, scores, out)
    return out
