"""Losses: one class each, a named tuple of its settings, with its formula.

A loss gives, for a row with score z and label y, the slope dl/dz, the value l, and its link, which turns a score into a
prediction. Compiled loops pick these functions by type (`kernels/losses.py`). For labels of rows it also gives the best
constant score, and how large scores and slopes are (`Scales`). `loss_entries.py` says which labels a loss is for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.imports import import_from
from paceline.kernels.losses import curvature, link, link_rows, loss_rule, measure, measure_rows
from paceline.models.loss_entries import LOSSES
from paceline.settings import LossConfig

Doubles = NDArray[np.float64]

ZERO, ONE, TWO = np.float32(0), np.float32(1), np.float32(2)
# Scores beyond this make no difference that float32 could hold, and exp() of them is still a number.
LARGEST_LOG = np.float32(60)
# Means under the Poisson loss this many times above the largest label are too large for any row.
FAR = np.float32(4)
ANY = np.finfo(np.float32).max
# Labels whose deviation is at most this share of their mean count as all the same.
SAME = 1e-9


class Scales(NamedTuple):
    """How large things are under a loss with the labels of some rows: the score to begin with, the units of scores and
    slopes, and the largest label.

    Steps of a fixed learning rate suit labels of any size if they are measured in these units (decision 0028).
    """

    start: float = 0.0
    score: float = 1.0
    slope: float = 1.0
    largest: float = 1.0


PLAIN = Scales()


class LabelUnits(NamedTuple):
    """What a loss took from the labels of the data that a model was first trained on: how large scores and slopes are,
    and the weights of classes, if they differ.
    """

    scales: Scales = PLAIN
    class_weights: NDArray[np.float32] | None = None


class Logistic(NamedTuple):
    """l = log(1 + exp(−y z)) for labels y of ±1, given as 0 and 1; the link is the probability of label 1, σ(z).

    With s = exp(−|z|) the loss is max(z, 0) − z · label + log(1 + s), which never overflows.
    """


class Squared(NamedTuple):
    """l = (z − y)² / 2; the link is z itself."""


class Hinge(NamedTuple):
    """l = max(0, 1 − y z) for labels y of ±1, given as 0 and 1: a support vector machine. The link is z itself."""


class SquaredHinge(NamedTuple):
    """l = max(0, 1 − y z)² for labels y of ±1, given as 0 and 1. The link is z itself."""


class Poisson(NamedTuple):
    """l = exp(z) − y z, the negative log-likelihood of counts y without its constant; the link is the mean, exp(z).

    In training, slopes stop growing where exp(z) is far above all labels, at `largest` or at `FAR` times the label.
    """

    largest: np.float32 = ANY


class Quantile(NamedTuple):
    """l = τ max(0, y − z) + (1 − τ) max(0, z − y): a share τ of the labels is below the link, z itself."""

    quantile: np.float32


class Huber(NamedTuple):
    """l = r² / 2 for errors r = z − y up to δ, and δ (|r| − δ / 2) for larger ones; the link is z itself."""

    delta: np.float32


class CrossEntropy(NamedTuple):
    """The loss `softmax`: l = log Σ exp(z_c) − z_y for scores z_c of classes (`kernels/multinomial.py`)."""


class ClassWeighted(NamedTuple):
    """Another loss for labels 0 and 1, times the weight of the label's class. For training only."""

    loss: Any
    negative: np.float32
    positive: np.float32


def _measure_logistic(loss: Any, score: Any, label: Any) -> tuple[Any, Any, Any]:
    shrunk = np.exp(-abs(score))
    share = ONE / (ONE + shrunk) if score >= 0 else shrunk / (ONE + shrunk)
    return share - label, max(score, ZERO) - score * label, ONE + shrunk


def _link_logistic(loss: Any, score: Any) -> Any:
    shrunk = np.exp(-abs(score))
    return ONE / (ONE + shrunk) if score >= 0 else shrunk / (ONE + shrunk)


def _measure_squared(loss: Any, score: Any, label: Any) -> tuple[Any, Any, Any]:
    away = score - label
    return away, away * away / TWO, ONE


def _measure_hinge(loss: Any, score: Any, label: Any) -> tuple[Any, Any, Any]:
    sign = TWO * label - ONE
    missing = max(ONE - sign * score, ZERO)
    return -sign if missing > 0 else ZERO, missing, ONE


def _measure_squared_hinge(loss: Any, score: Any, label: Any) -> tuple[Any, Any, Any]:
    sign = TWO * label - ONE
    missing = max(ONE - sign * score, ZERO)
    return -TWO * sign * missing, missing * missing, ONE


def _measure_poisson(loss: Any, score: Any, label: Any) -> tuple[Any, Any, Any]:
    mean = np.exp(min(score, LARGEST_LOG))
    return min(mean, max(loss.largest, FAR * label)) - label, mean - label * score, ONE


def _link_poisson(loss: Any, score: Any) -> Any:
    return np.exp(min(score, LARGEST_LOG))


def _measure_quantile(loss: Any, score: Any, label: Any) -> tuple[Any, Any, Any]:
    away = score - label
    # Without branches: which side a label is on cannot be foreseen.
    slope = np.float32(away > 0) - loss.quantile * np.float32(away != 0)
    return slope, slope * away, ONE


def _measure_huber(loss: Any, score: Any, label: Any) -> tuple[Any, Any, Any]:
    away = score - label
    slope = min(max(away, -loss.delta), loss.delta)
    return slope, slope * (away - slope / TWO), ONE


def _measure_class_weighted(loss: Any, score: Any, label: Any) -> tuple[Any, Any, Any]:
    slope, value, factor = measure(loss.loss, score, label)
    weight = loss.positive if label > 0 else loss.negative
    return weight * slope, weight * (value + np.log(factor)), ONE


def _link_class_weighted(loss: Any, score: Any) -> Any:
    return link(loss.loss, score)


def _curvature_class_weighted(loss: Any) -> Any:
    return curvature(loss.loss)


def _score_itself(loss: Any, score: Any) -> Any:
    return score


def _quarter(loss: Any) -> Any:
    return ONE / np.float32(4)


def _one(loss: Any) -> Any:
    return ONE


def _two(loss: Any) -> Any:
    return TWO


loss_rule(Logistic, _measure_logistic, _link_logistic, _quarter)
loss_rule(Squared, _measure_squared, _score_itself, _one)
loss_rule(Hinge, _measure_hinge, _score_itself, _one)
loss_rule(SquaredHinge, _measure_squared_hinge, _score_itself, _two)
loss_rule(Poisson, _measure_poisson, _link_poisson, _one)
loss_rule(Quantile, _measure_quantile, _score_itself, _one)
loss_rule(Huber, _measure_huber, _score_itself, _one)
loss_rule(ClassWeighted, _measure_class_weighted, _link_class_weighted, _curvature_class_weighted)


def rule_of(config: LossConfig) -> Any:
    """The loss with these settings, as compiled loops take it.

    >>> rule_of(LossConfig(name="squared")), float(rule_of(LossConfig(name="huber", delta=2.0)).delta)
    (Squared(), 2.0)
    """
    entry = LOSSES[config.name]
    return import_from(entry.rule)(*(np.float32(getattr(config, name)) for name in entry.settings))


def rule_to_train(config: LossConfig, scales: Scales, weights: NDArray[np.float32] | None = None) -> Any:
    """The loss with these settings in training: with slopes that suit the labels, and with the weights of the classes 0
    and 1, if they differ.
    """
    rule = rule_of(config)
    if type(rule) in _IN_TRAINING:
        rule = _IN_TRAINING[type(rule)](rule, scales)
    return rule if weights is None else ClassWeighted(rule, *weights)


def total_loss(loss: Any, scores: NDArray[np.float32], labels: NDArray[Any], weights: Any = None) -> float:
    """The sum of the losses of rows with these scores, in float64; each counts as much as its weight says.

    >>> round(total_loss(Logistic(), np.zeros(2, np.float32), np.array([0, 1], np.uint8)) / 2, 4)
    0.6931
    """
    return measure_rows(loss, scores.astype(np.float64), labels, weights, np.empty(len(scores)))


def predictions(loss: Any, scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """What scores predict.

    >>> predictions(Logistic(), np.zeros(1, np.float32)).tolist()
    [0.5]
    """
    out = np.empty_like(scores)
    link_rows(loss, scores, out)
    return out


def constant_loss(loss: Any, score: float, labels: NDArray[Any], weights: NDArray[Any] | None = None) -> float:
    """The mean loss of rows that all have this score; 0 if they have no weight.

    >>> round(constant_loss(Logistic(), 0.0, np.array([0, 1, 1])), 4)
    0.6931
    """
    total = float(len(labels) if weights is None else weights.sum(dtype=np.float64))
    return total_loss(loss, np.full(len(labels), score, np.float32), labels, weights) / total if total else 0.0


def best_score(loss: Any, labels: NDArray[Any], weights: NDArray[Any] | None = None) -> float:
    """The score that is best for all of these rows at once; some must have a weight above 0.

    >>> best_score(Squared(), np.array([1, 2, 6])), best_score(Hinge(), np.array([0, 1]), np.array([1, 3]))
    (3.0, 1.0)
    """
    labels = labels.astype(np.float64)
    weights = np.ones(len(labels)) if weights is None else weights.astype(np.float64)
    return _BEST[type(loss)](loss, labels, weights / weights.sum())


def scales_of(loss: Any, labels: NDArray[Any], weights: NDArray[Any] | None = None) -> Scales:
    """How large scores and slopes are with these labels."""
    labels = labels.astype(np.float64)
    shares = np.ones(len(labels)) if weights is None else weights.astype(np.float64)
    if not shares.sum() > 0:
        return PLAIN
    shares /= shares.sum()
    mean = float(shares @ labels)
    deviation = float(shares @ (labels - mean) ** 2) ** 0.5
    if deviation <= SAME * abs(mean):
        deviation = abs(mean) or 1.0
    units = _UNITS.get(type(loss))
    if units is None:
        return PLAIN
    return Scales(best_score(loss, labels, shares), *units(loss, mean, deviation), float(labels.max()))


def _best_logistic(loss: Logistic, labels: Doubles, shares: Doubles) -> float:
    share = float(shares @ labels)
    odds = np.log(max(share, 1e-30) / max(1 - share, 1e-30))
    return float(np.clip(odds, -LARGEST_LOG, LARGEST_LOG))


def _best_poisson(loss: Poisson, labels: Doubles, shares: Doubles) -> float:
    return float(np.log(max(float(shares @ labels), 1e-6)))


def _best_quantile(loss: Quantile, labels: Doubles, shares: Doubles) -> float:
    order = np.argsort(labels, kind="stable")
    place = int(np.searchsorted(np.cumsum(shares[order]), float(loss.quantile) * (1 - 1e-12)))
    return float(labels[order[min(place, len(order) - 1)]])


def _best_huber(loss: Huber, labels: Doubles, shares: Doubles) -> float:
    """Where the slopes add up to 0; they grow with the score."""
    low, high, delta = float(labels.min()), float(labels.max()), float(loss.delta)
    for _ in range(60):
        middle = (low + high) / 2
        if shares @ np.clip(middle - labels, -delta, delta) < 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


_BEST: dict[type, Callable[[Any, Doubles, Doubles], float]] = {
    Logistic: _best_logistic,
    Squared: lambda loss, labels, shares: float(shares @ labels),
    Hinge: lambda loss, labels, shares: 1.0 if shares @ labels > 1 / 2 else -1.0,
    SquaredHinge: lambda loss, labels, shares: 2 * float(shares @ labels) - 1,
    Poisson: _best_poisson,
    Quantile: _best_quantile,
    Huber: _best_huber,
}
# The units of scores and slopes, from the mean and the deviation of labels. Both are 1 for labels 0 and 1.
_UNITS: dict[type, Callable[[Any, float, float], tuple[float, float]]] = {
    Squared: lambda loss, mean, deviation: (deviation, deviation),
    Poisson: lambda loss, mean, deviation: (1.0, max(mean, 1e-6)),
    Quantile: lambda loss, mean, deviation: (deviation, 1.0),
    Huber: lambda loss, mean, deviation: (deviation, min(float(loss.delta), deviation)),
}
# Losses whose slopes have no bound of their own. One row with exp(z) far too large would leave AdaGrad and FTRL a sum
# of squares next to which no other row counts (decision 0028).
_IN_TRAINING: dict[type, Callable[[Any, Scales], Any]] = {
    Poisson: lambda loss, scales: Poisson(FAR * np.float32(scales.largest or 1)),
}
