"""What do the labels of training rows mean for a model before training begins?

The manifest knows their statistics, unless an older version wrote it. Then blocks are read.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.data.label_statistics import LabelStatistics
from paceline.errors import ConfigError
from paceline.settings import RunConfig

if TYPE_CHECKING:
    from paceline.models.model import Model


def first_labels(dataset: Any) -> tuple[NDArray[Any], NDArray[np.float32] | None]:
    """The labels of the first block of training rows, and the weights of these rows, if they have any."""
    rows = dataset.block("train", 0)
    return rows.labels, rows.weights


def refuse_below(least: float, dataset: Any, loss: str) -> None:
    """Raise if a label is less than a loss allows. Two classes are 0 and 1."""
    if dataset.manifest.labels.kind != "numbers":
        return
    known = dataset.manifest.label_statistics
    smallest = float(first_labels(dataset)[0].min()) if known is None else known.least
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
    """Raise if no training row has one of the classes, or all of them weigh nothing: a model would never predict it."""
    known, labels = dataset.manifest.label_statistics, dataset.manifest.labels
    if labels.kind == "numbers" or known is None:
        return
    if 0 in known.rows:
        raise ConfigError(
            f"no training row of `{dataset.folder}` has the class `{labels.names[known.rows.index(0)]}`",
            "prepare data that shows all classes, or leave that class out",
        )
    if 0 in known.weights:
        raise ConfigError(
            f"all training rows of `{dataset.folder}` with the class `{labels.names[known.weights.index(0)]}` weigh 0",
            "give some of them a weight above 0, or leave that class out",
        )


def refuse_class_weight(config: RunConfig, dataset: Any) -> None:
    """Raise if classes are to count the same, but labels are numbers."""
    given = config.loss.class_weight
    if given and dataset.manifest.labels.kind == "numbers":
        raise ConfigError(
            f"`class_weight` is `{given}`, but the labels of the data are numbers, which have no classes",
            "leave --class-weight out, or prepare the data again with --labels two-classes or classes",
        )


def baseline_in_training(model: Model, dataset: Any) -> float | None:
    """The loss of the best constant prediction for the training rows, as training weighs them, by the statistics of
    their labels. None for datasets without any.
    """
    known: LabelStatistics | None = getattr(dataset.manifest, "label_statistics", None)
    if known is None:
        return None
    if dataset.manifest.labels.kind == "numbers":
        labels, weights = labels_like(known)
    else:
        labels, weights = dataset.manifest.labels.numbered_as(dataset.labels.names), np.array(known.weights)
    if (of_classes := model.label_units.class_weights) is not None:
        weights = weights * of_classes[labels]
    output, count = model.output, len(labels)
    scores = np.zeros((count, output.num_classes) if output.num_classes else count, np.float32)
    sums = output.metric_sums()
    sums.add(scores, labels.astype(dataset.labels.dtype), (weights / weights.sum()).astype(np.float32))
    return sums.quality()["baseline_loss"]


def labels_like(known: LabelStatistics) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A few labels, and weights, with the mean and the deviation of all labels, and nearly their quantiles.

    Labels between two quantiles count as their middle. A tail is the hundredth of the labels at either end, and may
    reach far, as counts and prices do. The mean and the deviation tell how far on average: `low` below and `high` above
    the quantile next to it. A `share` of each tail makes up that distance; the rest is at the quantile. Both distances
    follow from the two equations if the share is one half. If no label is that far away at one end, the mean gives the
    distance at the other, and the deviation the share.
    """
    # All distances are from the mean.
    edges = np.array(known.quantiles) - known.mean
    left, right, inner = edges[1], edges[-2], (edges[1:-2] + edges[2:-1]) / 2
    part = 1 / (len(edges) - 1)
    near = np.array([left, *inner, right])
    more = -near.sum()
    squares = known.deviation**2 / part - near @ near
    half = (right - left) / 2 - more
    high = (-half + math.sqrt(max(half**2 - 2 * more * (left + more) + squares, 0.0))) / 2
    high = min(max(high, more, 0.0), (edges[-1] - right) / 2)
    low = min(max(high - more, 0.0), (left - edges[0]) / 2)
    high = max(low + more, 0.0)
    rest = squares - 2 * right * high + 2 * left * low
    share = min((low**2 + high**2) / rest, 1.0) if rest > 0 and low + high > 0 else 1.0
    found = np.array([left - low / share, *near, right + high / share])
    weights = part * np.array([share, 1 - share, *np.ones(len(inner)), 1 - share, share])
    # What is left is rounding, and that labels may not be in the middle.
    found -= weights @ found
    deviation = (weights @ found**2) ** 0.5
    return known.mean + found * (known.deviation / deviation if deviation else 0.0), weights


def _weight_by_class(dataset: Any) -> NDArray[np.float64]:
    if (known := dataset.manifest.label_statistics) is not None:
        return np.array(known.weights)
    totals = np.zeros(dataset.labels.classes)
    for number in range(len(dataset.split("train").blocks)):
        rows = dataset.block("train", number)
        totals += np.bincount(rows.labels, rows.weights, len(totals))[: len(totals)]
    return totals
