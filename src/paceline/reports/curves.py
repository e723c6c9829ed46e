"""How did learning go? The metrics of one run or several, one chart per measure, against rows or against time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.models.registry import METRICS
from paceline.reports.charts import Line, Reference, has_curve, line_chart, line_legend
from paceline.reports.markup import Markup, element

Metrics = Sequence[Mapping[str, Any]]

# The rows on which evaluations measure, in the order of their styles.
LINE_NAMES = ("training", "test", "validation")
PREFIXES = {"training": "train", "validation": "validation", "test": "test"}
BASELINE = "baseline_loss"
# A diverging loss would hide all other values of a chart, and overflow its scale.
LARGEST_DRAWN = 1e100
AXES = (("rows", "rows"), ("seconds", "s"))
# One chart per measure: its title, and the metric.
CHARTS = {metric.label[0].upper() + metric.label[1:]: name for name, metric in METRICS.items() if name != BASELINE}


def curves_of_one(metrics: Metrics) -> list[Markup]:
    """A chart per metric with a line for training, validation and test rows, as far as they were measured."""
    figures = []
    for title, name in CHARTS.items():
        series = [(rows, style, metrics, f"{PREFIXES[rows]}_{name}") for style, rows in enumerate(LINE_NAMES)]
        figures += _chart(title, series, _best_constant(metrics) if name == "loss" else None)
    return figures


def curves_of_several(runs: Mapping[str, Metrics]) -> list[Markup]:
    """A chart per metric and kind of rows, with one line per run, by its name."""
    figures = []
    for rows in LINE_NAMES:
        for title, name in CHARTS.items():
            key = f"{PREFIXES[rows]}_{name}"
            series = [(run, style, found, key) for style, (run, found) in enumerate(runs.items())]
            written = title if title.isupper() or title[:2].isupper() else title.lower()
            figures += _chart(f"{rows.capitalize()} {written}", series)
    return figures


def legend_of_one(metrics: Metrics) -> Markup:
    """The legend of `curves_of_one`: only lines that were measured."""
    found = [name for name in LINE_NAMES if any(line.get(f"{PREFIXES[name]}_loss") is not None for line in metrics)]
    return line_legend(found, [LINE_NAMES.index(name) for name in found])


def with_choice(figures: Sequence[Markup], group: str) -> Markup:
    """Charts of `curves_of_…` below a choice of their horizontal axis. `group` names the choice on its page."""
    choices = [
        element("label", element("input", type="radio", name_=group, checked=checked, class_=f"to-{axis}"), text)
        for axis, text, checked in (("rows", "by rows", ""), ("seconds", "by time", None))
    ]  # fmt: skip
    return element(
        "div", element("div", *choices, class_="choice", role="radiogroup", aria_label="horizontal axis"),
        element("div", *figures, class_="charts"), class_="curves",
    )  # fmt: skip


def _chart(
    title: str, series: Sequence[tuple[str, int, Metrics, str]], reference: Reference | None = None
) -> list[Markup]:
    """One chart of lines by name, style, metrics and key, drawn once per axis; nothing if no line has two points."""
    drawn = []
    for axis, unit in AXES:
        lines = [
            Line(name, style, [float(line[axis]) for line in metrics], [_finite(line.get(key)) for line in metrics])
            for name, style, metrics, key in series
        ]
        measured = [line for line in lines if any(y is not None for y in line.ys)]
        if not has_curve(measured):
            return []
        chart = line_chart(title, measured, unit, "", reference=reference)
        drawn.append(element("div", chart, class_=f"by-{axis}"))
    return [element("div", *drawn)]


def _best_constant(metrics: Metrics) -> Reference | None:
    """The loss of the best constant prediction."""
    found = [value for line in metrics for rows in PREFIXES.values()
             if (value := _finite(line.get(f"{rows}_{BASELINE}"))) is not None]  # fmt: skip
    return Reference("best constant", found[-1]) if found else None


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) <= LARGEST_DRAWN else None
