"""How did learning go? The metrics of one run or several, against rows and against time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.reports.charts import Line, line_chart
from paceline.reports.markup import Markup
from paceline.reports.measures import TEST_MEASURES

Metrics = Sequence[Mapping[str, Any]]

# Charts of several runs: a title and what is drawn, one line per run.
SHARED_CHARTS = {"Training loss": "train_loss"} | {
    f"{measure.label[0].upper()}{measure.label[1:]}": measure.name for measure in TEST_MEASURES
}
# Charts of one run: a title, and its lines by name. Both losses share a chart.
OWN_CHARTS = {"Loss": {"training": "train_loss", "test": "test_loss"}} | {
    title: {"test": name} for title, name in SHARED_CHARTS.items() if not name.endswith("_loss")
}
# A diverging loss would hide all other values of a chart, and overflow its scale.
LARGEST_DRAWN = 1e100
AXES = (("rows", "rows", "rows"), ("seconds", "s", "time"))
LINE_NAMES = ("training", "test")


def curves_of_one(metrics: Metrics) -> list[Markup]:
    """Two charts per metric: against rows, and against seconds of training."""
    figures = []
    for title, keys in OWN_CHARTS.items():
        figures += _charts(title, [(name, LINE_NAMES.index(name), metrics, key) for name, key in keys.items()])
    return figures


def curves_of_several(runs: Mapping[str, Metrics]) -> list[Markup]:
    """The same charts with one line per run, by its name."""
    figures = []
    for title, key in SHARED_CHARTS.items():
        figures += _charts(title, [(name, style, found, key) for style, (name, found) in enumerate(runs.items())])
    return figures


def _charts(title: str, series: Sequence[tuple[str, int, Metrics, str]]) -> list[Markup]:
    """Charts of lines by name, style, metrics and key; lines without any value are left out."""
    figures = []
    for axis, unit, word in AXES:
        lines = [
            Line(name, style, [float(line[axis]) for line in metrics], [_finite(line.get(key)) for line in metrics])
            for name, style, metrics, key in series
        ]
        if measured := [line for line in lines if any(y is not None for y in line.ys)]:
            figures.append(line_chart(f"{title} against {word}", measured, unit, ""))
    return figures


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) <= LARGEST_DRAWN else None
