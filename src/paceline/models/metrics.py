"""How good are predictions? Metrics over rows, added up part by part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.linear import count_above

Floats = NDArray[np.float32]
Quality = dict[str, float]


class MetricSums(Protocol):
    """The metrics of a task."""

    def add(self, scores: Floats, labels: NDArray[Any]) -> None:
        """Some more rows."""

    def quality(self) -> Quality:
        """Over all rows so far, of which there must be some."""


class TwoClassSums:
    """Scores against labels 0 and 1: mean loss, share of wrong labels, area under the ROC curve (NaN for one label).

    Scores are kept for the AUC.
    """

    def __init__(self, total_loss: Callable[[Floats, NDArray[Any]], float]) -> None:
        self._total_loss = total_loss
        self._losses = 0.0
        self._errors = 0
        self._negatives: list[Floats] = []
        self._positives: list[Floats] = []

    def add(self, scores: Floats, labels: NDArray[Any]) -> None:
        positive = labels == 1
        self._losses += self._total_loss(scores, labels)
        self._errors += int(((scores > 0) != positive).sum())
        self._negatives.append(scores[~positive])
        self._positives.append(scores[positive])

    def quality(self) -> Quality:
        negatives, positives = np.concatenate(self._negatives), np.concatenate(self._positives)
        num_rows, pairs = len(negatives) + len(positives), len(negatives) * len(positives)
        negatives.sort()
        positives.sort()
        auc = count_above(negatives, positives) / pairs if pairs else float("nan")
        return {"loss": self._losses / num_rows, "error": self._errors / num_rows, "auc": auc}


class ClassSums:
    """Scores of classes [rows, classes] against the number of the right one."""

    def __init__(self, total_loss: Callable[[Floats, NDArray[Any]], float]) -> None:
        self._total_loss = total_loss
        self._losses = 0.0
        self._right = 0
        self._num_rows = 0

    def add(self, scores: Floats, labels: NDArray[Any]) -> None:
        self._losses += self._total_loss(scores, labels)
        self._right += int((scores.argmax(axis=1) == labels).sum())
        self._num_rows += len(labels)

    def quality(self) -> Quality:
        share = self._right / self._num_rows
        return {"loss": self._losses / self._num_rows, "error": 1 - share, "accuracy": share}


class NumberSums:
    """Predictions against numbers: mean loss and the root of the mean squared error."""

    def __init__(self, total_loss: Callable[[Floats, NDArray[Any]], float], link: Callable[[Floats], Floats]) -> None:
        self._total_loss = total_loss
        self._link = link
        self._losses = 0.0
        self._squares = 0.0
        self._num_rows = 0

    def add(self, scores: Floats, labels: NDArray[Any]) -> None:
        self._losses += self._total_loss(scores, labels)
        self._squares += float(((self._link(scores).astype(np.float64) - labels) ** 2).sum())
        self._num_rows += len(labels)

    def quality(self) -> Quality:
        return {"loss": self._losses / self._num_rows, "rmse": (self._squares / self._num_rows) ** 0.5}
