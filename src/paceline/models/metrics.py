"""How good are predictions? Metrics over rows, added up part by part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.linear import count_above

Floats = NDArray[np.float32]
Quality = dict[str, float]
TotalLoss = Callable[[Floats, NDArray[Any]], float]


class MetricSums(Protocol):
    """The metrics of a task."""

    def add(self, scores: Floats, labels: NDArray[Any]) -> None:
        """Take more rows into account."""

    def quality(self) -> Quality:
        """The metrics over all rows so far; there must be at least one."""


@dataclass
class TwoClassSums:
    """Scores against labels 0 and 1: mean loss, share of wrong labels, area under the ROC curve (NaN for one label).

    Scores are kept for the AUC.
    """

    total_loss: TotalLoss
    losses: float = 0.0
    negatives: list[Floats] = field(default_factory=list)
    positives: list[Floats] = field(default_factory=list)

    def add(self, scores: Floats, labels: NDArray[Any]) -> None:
        self.losses += self.total_loss(scores, labels)
        self.negatives.append(scores[labels != 1])
        self.positives.append(scores[labels == 1])

    def quality(self) -> Quality:
        negatives, positives = (np.sort(np.concatenate(found)) for found in (self.negatives, self.positives))
        num_rows, pairs = len(negatives) + len(positives), len(negatives) * len(positives)
        errors = int((negatives > 0).sum() + (~(positives > 0)).sum())
        auc = count_above(negatives, positives) / pairs if pairs else float("nan")
        return {"loss": self.losses / num_rows, "error": errors / num_rows, "auc": auc}


def two_class_sums(total_loss: TotalLoss, _link: Callable[[Floats], Floats]) -> TwoClassSums:
    """The metrics of two classes, which need no link: the order of scores is that of probabilities."""
    return TwoClassSums(total_loss)


@dataclass
class ClassSums:
    """Scores of classes [rows, classes] against the number of the right one."""

    total_loss: TotalLoss
    losses: float = 0.0
    num_right: int = 0
    num_rows: int = 0

    def add(self, scores: Floats, labels: NDArray[Any]) -> None:
        self.losses += self.total_loss(scores, labels)
        self.num_right += int((scores.argmax(axis=1) == labels).sum())
        self.num_rows += len(labels)

    def quality(self) -> Quality:
        share = self.num_right / self.num_rows
        return {"loss": self.losses / self.num_rows, "error": 1 - share, "accuracy": share}


@dataclass
class NumberSums:
    """Predictions against numbers: mean loss and the root of the mean squared error."""

    total_loss: TotalLoss
    link: Callable[[Floats], Floats]
    losses: float = 0.0
    squares: float = 0.0
    num_rows: int = 0

    def add(self, scores: Floats, labels: NDArray[Any]) -> None:
        self.losses += self.total_loss(scores, labels)
        self.squares += float(((self.link(scores).astype(np.float64) - labels) ** 2).sum())
        self.num_rows += len(labels)

    def quality(self) -> Quality:
        return {"loss": self.losses / self.num_rows, "rmse": (self.squares / self.num_rows) ** 0.5}
