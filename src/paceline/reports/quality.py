"""Has a model learned what it can? Still improving, converged or overfitting, in a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from paceline.reports.units import quantity

Metrics = Sequence[Mapping[str, Any]]

IMPROVING, CONVERGED, OVERFITTING, UNKNOWN = "still improving", "converged", "overfitting", ""
FEWEST = 3
# Of the whole improvement over a constant prediction: what the last quarter of the rows brings to a model that still
# improves, and what one that overfits has lost since its best evaluation.
NOTICEABLE = 0.02


class Quality(NamedTuple):
    """How learning went, in one word, and in a sentence."""

    state: str
    sentence: str


def quality_of(metrics: Metrics) -> Quality | None:
    """How the loss on held-out rows developed; None if nothing was evaluated."""
    rows = next((rows for rows in ("validation", "test", "train") if _curve(metrics, f"{rows}_loss")), None)
    if rows is None:
        return None
    curve, name = _curve(metrics, f"{rows}_loss"), "training loss" if rows == "train" else f"{rows} loss"
    places, losses = np.array(curve).T
    baseline = next((value for *_, value in reversed(_curve(metrics, f"{rows}_baseline_loss"))), None)
    against = _against(losses[-1], baseline, name)
    if len(curve) < FEWEST:
        return Quality(UNKNOWN, against)
    whole = max(losses[0] if baseline is None else max(losses[0], baseline), losses[0]) - losses.min()
    if whole <= 0:
        return Quality(UNKNOWN, against)
    best = int(losses.argmin())
    lost = (losses[-1] - losses[best]) / whole
    gained = (np.interp(0.75 * places[-1], places, losses) - losses[-1]) / whole
    if lost > NOTICEABLE and rows != "train":
        return Quality(OVERFITTING, (
            f"Overfitting: the {name} was lowest, {_loss(losses[best])}, after {quantity(places[best], 'rows')}, "
            f"and is {_loss(losses[-1])} now. {_instead(rows)}"
        ))  # fmt: skip
    if gained > NOTICEABLE:
        return Quality(IMPROVING, (
            f"Still improving: the last quarter of the rows brought {gained:.0%} of the improvement. "
            f"More epochs are likely to help. {against}"
        ).rstrip())  # fmt: skip
    return Quality(CONVERGED, (
        f"Converged: the last quarter of the rows changed the {name} by less than {_percent(abs(gained))} "
        f"of the improvement. {against}"
    ).rstrip())  # fmt: skip


def _curve(metrics: Metrics, key: str) -> list[tuple[float, float]]:
    """Rows and values where they are known."""
    found = [(line["rows"], line.get(key)) for line in metrics]
    return [(float(rows), float(value)) for rows, value in found if value is not None and abs(value) < 1e100]


def _against(loss: float, baseline: float | None, name: str) -> str:
    """The loss, compared with that of the best constant prediction."""
    if baseline is None:
        return f"The {name} is {_loss(loss)}."
    if loss >= baseline:
        return f"The {name}, {_loss(loss)}, is no better than that of the best constant prediction, {_loss(baseline)}."
    if baseline <= 0:
        return f"The {name} is {_loss(loss)}; that of the best constant prediction is {_loss(baseline)}."
    below = (baseline - loss) / baseline
    share = f"{below:.0%}" if below < 0.995 else "over 99%"
    return f"The {name}, {_loss(loss)}, is {share} below that of the best constant prediction, {_loss(baseline)}."


def _loss(value: float) -> str:
    """A loss in four digits or more.

    >>> _loss(0.45678), _loss(0.0000216), _loss(3456.789)
    ('0.4568', '2.16e-05', '3,456.7890')
    """
    return f"{value:.4g}" if 0 < abs(value) < 0.001 else f"{value:,.4f}"


def _instead(rows: str) -> str:
    """What helps against overfitting."""
    if rows == "validation":
        return "The model with the lowest loss was kept; `--early-stopping 3` would have ended the run soon after it."
    return "Train for fewer epochs, or hold out validation rows, so that the best model is kept."


def _percent(share: float) -> str:
    return f"{max(1, int(np.ceil(100 * share)))}%"
