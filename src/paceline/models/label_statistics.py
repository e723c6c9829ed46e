"""What do the labels of training rows mean for a model before training begins?

The manifest knows their statistics, unless an older version wrote it. Then blocks are read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import ConfigError


def first_labels(dataset: Any) -> tuple[NDArray[Any], NDArray[np.float32] | None]:
    """The labels of the first block of training rows, and the weights of these rows, if they have any."""
    rows = dataset.block("train", 0)
    return rows.labels, rows.weights


def refuse_below(least: float, dataset: Any, loss: str) -> None:
    """Raise if a label is less than a loss allows."""
    known = dataset.manifest.label_statistics
    smallest = known.least if known is not None and known.quantiles else float(first_labels(dataset)[0].min())
    if smallest < least:
        raise ConfigError(
            f"the loss `{loss}` needs labels of at least {least:g}; the training rows have {smallest:g}",
            "--loss squared, huber or quantile",
        )


def class_weights(dataset: Any) -> NDArray[np.float32]:
    """A weight per class with which the rows of each class count the same in total, and all rows as much as before."""
    totals, classes = _weight_by_class(dataset), dataset.labels.classes
    if not (totals > 0).all():
        missing = dataset.labels.names[int(np.argmin(totals))]
        raise ConfigError(
            f"`class_weight` is `balanced`, but no training row has the class `{missing}`",
            "leave --class-weight out, or prepare data that shows all classes",
        )
    weights: NDArray[np.float32] = (totals.sum() / (classes * totals)).astype(np.float32)
    return weights


def refuse_unseen(dataset: Any) -> None:
    """Raise if no training row has one of the classes: a model would never predict it."""
    known, labels = dataset.manifest.label_statistics, dataset.labels
    if labels.kind != "numbers" and known is not None and 0 in known.rows:
        missing = labels.names[known.rows.index(0)]
        raise ConfigError(
            f"no training row of `{dataset.folder}` has the class `{missing}`",
            "prepare data that shows all classes, or leave that class out",
        )


def _weight_by_class(dataset: Any) -> NDArray[np.float64]:
    if (known := dataset.manifest.label_statistics) is not None:
        return np.array(known.weights)
    totals = np.zeros(dataset.labels.classes)
    for number in range(len(dataset.split("train").blocks)):
        rows = dataset.block("train", number)
        totals += np.bincount(rows.labels, rows.weights, len(totals))[: len(totals)]
    return totals
