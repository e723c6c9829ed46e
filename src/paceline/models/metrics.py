"""How good are predictions? Metrics over rows, added up part by part; a row counts as much as its weight says.

All of them have `baseline_loss`, the loss of the best constant prediction for the same rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.linear import count_above

Floats = NDArray[np.float32]
Quality = dict[str, float]
Weights = NDArray[np.float32] | None
TotalLoss = Callable[[Floats, NDArray[Any], Any], float]


class LossFunctions(NamedTuple):
    """What metrics need to know of a loss: the sum of the losses of rows (scores, labels, weights), its link, and the
    best constant score for rows (labels, weights).
    """

    total: TotalLoss
    link: Callable[[Floats], Floats]
    best: Callable[[NDArray[Any], Any], float]

    def baseline(self, labels: NDArray[Any], weights: NDArray[Any]) -> float:
        """The mean loss of the best constant score."""
        scores = np.full(len(labels), self.best(labels, weights), np.float32)
        return self.total(scores, labels, weights) / float(weights.sum(dtype=np.float64))


class MetricSums(Protocol):
    """The metrics of a task."""

    def add(self, scores: Floats, labels: NDArray[Any], weights: Weights = None) -> None:
        """Take more rows into account."""

    def quality(self) -> Quality:
        """The metrics over all rows so far; there must be at least one. NaN if all weights are 0."""


@dataclass
class TwoClassSums:
    """Scores against labels 0 and 1: mean loss, share of wrong labels, area under the ROC curve (NaN for one label).

    Scores are kept for the AUC.
    """

    loss: LossFunctions
    losses: float = 0.0
    negatives: list[tuple[Floats, Weights]] = field(default_factory=list)
    positives: list[tuple[Floats, Weights]] = field(default_factory=list)

    def add(self, scores: Floats, labels: NDArray[Any], weights: Weights = None) -> None:
        self.losses += self.loss.total(scores, labels, weights)
        for found, mask in ((self.negatives, labels != 1), (self.positives, labels == 1)):
            found.append((scores[mask], None if weights is None else weights[mask]))

    def quality(self) -> Quality:
        (negatives, of_negatives), (positives, of_positives) = map(_sorted, (self.negatives, self.positives))
        everything = np.s_[:]
        totals = np.array([_total(negatives, everything, of_negatives), _total(positives, everything, of_positives)])
        total, pairs = float(totals.sum()), float(totals.prod())
        if not total > 0:
            return dict.fromkeys(("loss", "baseline_loss", "error", "auc"), float("nan"))
        errors = _total(negatives, negatives > 0, of_negatives) + _total(positives, ~(positives > 0), of_positives)
        auc = count_above(negatives, of_negatives, positives, of_positives) / pairs if pairs else float("nan")
        baseline = self.loss.baseline(np.array([0, 1], np.uint8), totals)
        return {"loss": self.losses / total, "baseline_loss": baseline, "error": errors / total, "auc": auc}


@dataclass
class ClassSums:
    """Scores of classes [rows, classes] against the number of the right one.

    Macro F1 is the mean over the classes that labels or predictions have. The baseline is the entropy of the labels.
    """

    total_loss: TotalLoss
    losses: float = 0.0
    right: Any = 0.0
    predicted: Any = 0.0
    labelled: Any = 0.0

    def add(self, scores: Floats, labels: NDArray[Any], weights: Weights = None) -> None:
        self.losses += self.total_loss(scores, labels, weights)
        found, counted = scores.argmax(axis=1), np.ones(len(labels)) if weights is None else weights.astype(np.float64)
        size = scores.shape[1]
        hit = found == labels
        self.right = self.right + np.bincount(found[hit], counted[hit], size)
        self.predicted = self.predicted + np.bincount(found, counted, size)
        self.labelled = self.labelled + np.bincount(labels, counted, size)

    def quality(self) -> Quality:
        total = float(self.labelled.sum())
        if not total > 0:
            return dict.fromkeys(("loss", "baseline_loss", "error", "macro_f1", "accuracy"), float("nan"))
        shares = self.labelled[self.labelled > 0] / total
        either = self.predicted + self.labelled
        f1 = float((2 * self.right[either > 0] / either[either > 0]).mean())
        accuracy = float(self.right.sum()) / total
        return {
            "loss": self.losses / total, "baseline_loss": float(-(shares * np.log(shares)).sum()),
            "error": 1 - accuracy, "macro_f1": f1, "accuracy": accuracy,
        }  # fmt: skip


@dataclass
class NumberSums:
    """Predictions against numbers: mean loss, mean absolute error, R² and the root of the mean squared error.

    R² compares with the mean of these labels; it is NaN if all labels are the same. Labels are kept for the baseline.
    """

    loss: LossFunctions
    losses: float = 0.0
    squares: float = 0.0
    absolutes: float = 0.0
    kept: list[tuple[Floats, Floats]] = field(default_factory=list)

    def add(self, scores: Floats, labels: NDArray[Any], weights: Weights = None) -> None:
        self.losses += self.loss.total(scores, labels, weights)
        counted = _ones(labels) if weights is None else weights
        away = self.loss.link(scores).astype(np.float64) - labels
        self.squares += float(counted @ away**2)
        self.absolutes += float(counted @ np.abs(away))
        self.kept.append((labels.astype(np.float32), counted))

    def quality(self) -> Quality:
        labels, counted = (np.concatenate(part).astype(np.float64) for part in zip(*self.kept, strict=True))
        total = float(counted.sum())
        if not total > 0:
            return dict.fromkeys(("loss", "baseline_loss", "mae", "r2", "rmse"), float("nan"))
        spread = float(counted @ (labels - counted @ labels / total) ** 2)
        return {
            "loss": self.losses / total, "baseline_loss": self.loss.baseline(labels, counted),
            "mae": self.absolutes / total, "r2": 1 - self.squares / spread if spread else float("nan"),
            "rmse": (self.squares / total) ** 0.5,
        }  # fmt: skip


@dataclass
class CountSums:
    """As `NumberSums`, with the Poisson deviance, the mean of 2 (y log(y / p) − y + p) for labels y, predictions p."""

    loss: LossFunctions
    deviances: float = 0.0

    def __post_init__(self) -> None:
        self._numbers = NumberSums(self.loss)

    def add(self, scores: Floats, labels: NDArray[Any], weights: Weights = None) -> None:
        self._numbers.add(scores, labels, weights)
        predicted = np.maximum(self.loss.link(scores).astype(np.float64), 1e-30)
        logs = np.log(np.maximum(labels, 1e-30) / predicted)
        counted = _ones(labels) if weights is None else weights
        self.deviances += float(counted @ (2 * (np.where(labels > 0, labels * logs, 0) - labels + predicted)))

    def quality(self) -> Quality:
        total = sum(float(counted.sum(dtype=np.float64)) for _, counted in self._numbers.kept)
        return self._numbers.quality() | {"deviance": self.deviances / total if total else float("nan")}


def _ones(labels: NDArray[Any]) -> Floats:
    return np.ones(len(labels), np.float32)


def _total(scores: Floats, which: Any, weights: NDArray[np.float64] | None) -> float:
    """How much some of the rows count."""
    return float(len(scores[which]) if weights is None else weights[which].sum())


def _sorted(parts: list[tuple[Floats, Weights]]) -> tuple[Floats, NDArray[np.float64] | None]:
    """All scores in order, and their weights, if they have any."""
    scores = np.concatenate([part for part, _ in parts])
    weights = [weights for _, weights in parts if weights is not None]
    if not weights:
        return np.sort(scores), None
    order = np.argsort(scores, kind="stable")
    return scores[order], np.concatenate(weights)[order].astype(np.float64)
