"""How did learning go? The metrics of one run or several, against rows and against time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.reports.charts import Line, line_chart
from paceline.reports.markup import Markup
from paceline.reports.measures import TEST_MEASURES

Metrics = Sequence[Mapping[str, Any]]

# Charts of several runs: a title and what is drawn, one line per run.
SHARED_MEASURES = {"Training loss": "train_loss"} | {
    f"{measure.label[0].upper()}{measure.label[1:]}": measure.name for measure in TEST_MEASURES
}
# Charts of one run: a title, and its lines by name. Both losses share a chart.
MEASURES = {"Loss": {"training": "train_loss", "test": "test_loss"}} | {
    title: {"test": name} for title, name in SHARED_MEASURES.items() if not name.endswith("_loss")
}
AXES = (("rows", "rows", "rows"), ("seconds", "s", "time"))
LINE_NAMES = ("training", "test")


def curves_of_one(metrics: Metrics) -> list[Markup]:
    """Two charts per metric: against rows, and against seconds of training."""
    figures = []
    for title, keys in MEASURES.items():
        for axis, unit, word in AXES:
            lines = [_line(name, LINE_NAMES.index(name), metrics, axis, key) for name, key in keys.items()]
            figures += _chart(f"{title} against {word}", lines, unit)
    return figures


def curves_of_several(runs: Mapping[str, Metrics]) -> list[Markup]:
    """The same charts with one line per run, by its name."""
    figures = []
    for title, key in SHARED_MEASURES.items():
        for axis, unit, word in AXES:
            lines = [_line(name, style, metrics, axis, key) for style, (name, metrics) in enumerate(runs.items())]
            figures += _chart(f"{title} against {word}", lines, unit)
    return figures


def _line(name: str, style: int, metrics: Metrics, axis: str, key: str) -> Line:
    xs = [float(line[axis]) for line in metrics]
    return Line(name, style, xs, [_finite(line.get(key)) for line in metrics])


def _chart(title: str, lines: list[Line], unit: str) -> list[Markup]:
    measured = [line for line in lines if any(y is not None for y in line.ys)]
    return [line_chart(title, measured, unit, "")] if measured else []


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
