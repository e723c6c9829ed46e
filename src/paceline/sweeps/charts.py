"""What does a sweep show? The loss against each setting that it varied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from paceline.reports.charts import DWARFING, NUM_COLOURS, Line, has_curve, line_chart, line_legend
from paceline.reports.layout import charts, note, section
from paceline.reports.markup import Markup, element
from paceline.reports.measures import Measure

# Numbers that differ by this factor are drawn on a logarithmic axis.
FAR_APART = DWARFING / 2
BEST = "the best with each value"


def against_settings(
    points: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]], measure: Measure
) -> list[Markup]:
    """One chart of `measure` per setting with two values or more. Empty if there is none.

    With one other setting of few values, each of those has a line; otherwise a line joins the best results.
    """
    keys = list(dict.fromkeys(key for point in points for key in point))
    # A point may leave out what another one varies; lists of values are compared as text.
    points = [{key: _plain(point.get(key)) for key in keys} for point in points]
    figures = []
    for key in keys:
        values = _sorted({point[key] for point in points})
        if len(values) < 2:
            continue
        own = [(point, value) for point, one in zip(points, results, strict=True)
               if (value := measure.value(one)) is not None]  # fmt: skip
        figures += _chart(key, values, own, measure)
    title = f"{measure.label[:1].upper()}{measure.label[1:]} against what varied"
    return [section(title, note("Values are under the pointer."), charts(figures))] if figures else []


def _chart(key: str, values: list[Any], own: list[tuple[Mapping[str, Any], Any]], measure: Measure) -> list[Markup]:
    is_number = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    places = {value: float(value) if is_number else float(place) for place, value in enumerate(values)}
    lines = _lines_of_others(key, own, places)
    if not has_curve(lines):
        lines = [_best_line(key, own, places, measure)]
    if not has_curve(lines):
        return []
    log = is_number and min(values) > 0 and max(values) >= FAR_APART * min(values)
    unit: str | list[str] = f"{key}{', log scale' if log else ''}" if is_number else [str(value) for value in values]
    figure = line_chart(f"{measure.label} against {key}", lines, unit, "", log_x=log)
    return [element("div", figure, *([line_legend([line.name for line in lines])] if len(lines) > 1 else []))]


def _lines_of_others(
    key: str, own: list[tuple[Mapping[str, Any], Any]], places: Mapping[Any, float]
) -> list[Line]:  # fmt: skip
    """One line per combination of the other settings; none if these are too many to tell apart or meet only once."""
    by_others: dict[str, list[tuple[float, float]]] = {}
    for point, value in own:
        others = ", ".join(f"{name}={other}" for name, other in point.items() if name != key) or BEST
        by_others.setdefault(others, []).append((places[point[key]], float(value)))
    if len(by_others) > NUM_COLOURS or any(len(found) < 2 for found in by_others.values()):
        return []
    return [_line(name, style, found) for style, (name, found) in enumerate(by_others.items())]


def _best_line(
    key: str, own: list[tuple[Mapping[str, Any], Any]], places: Mapping[Any, float], measure: Measure
) -> Line:
    best = max if measure.better == "high" else min
    found: dict[float, float] = {}
    for point, value in own:
        place = places[point[key]]
        found[place] = best(found.get(place, float(value)), float(value))
    return _line(BEST, 0, list(found.items()))


def _line(name: str, style: int, found: list[tuple[float, float]]) -> Line:
    ordered = sorted(found)
    assert all(a[0] < b[0] for a, b in pairwise(ordered)), "two runs with the same settings"
    return Line(name, style, [x for x, _ in ordered], [y for _, y in ordered])


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str) else str(value if value is not None else "default")


def _sorted(values: set[Any]) -> list[Any]:
    """Numbers by size, other values as they are written; `False` before `True`."""
    numbers = all(isinstance(value, int | float) for value in values)
    return sorted(values) if numbers else sorted(values, key=str)
