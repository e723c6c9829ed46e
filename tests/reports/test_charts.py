"""What a chart shows: round ticks, gaps as gaps, peaks that thinning keeps."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.reports.charts import (
    HEIGHT,
    MOST_POINTS,
    WIDTH,
    Line,
    line_chart,
    line_class,
    scale,
    stacked_bar,
)


@pytest.mark.parametrize(
    ("values", "unit", "labels", "written"),
    [
        ([0.0, 1_000_000.0], "rows", ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"], "million rows"),
        ([0.0, 0.0031], "s", ["0", "1", "2", "3", "4"], "milliseconds"),
        ([0.45, 0.62], "", ["0.45", "0.50", "0.55", "0.60", "0.65"], ""),
        ([0.0, 1.0], "%", ["0", "20", "40", "60", "80", "100"], "%"),
        ([0.0, 8.1e9], "B", ["0", "2", "4", "6", "8", "10"], "GB"),
    ],
)
def test_ticks_are_round(values: list[float], unit: str, labels: list[str], written: str) -> None:
    axis = scale(values, unit, 5, at_ticks=True)
    assert (axis.labels, axis.unit) == (labels, written)


@given(st.lists(st.floats(-1e12, 1e12), min_size=0, max_size=20), st.booleans())
def test_every_value_is_on_its_axis(values: list[float], at_ticks: bool) -> None:
    axis = scale(values, "", 5, at_ticks=at_ticks)
    assert axis.high > axis.low
    assert all(-1e-6 <= axis.share(value) <= 1 + 1e-6 for value in values)
    assert 1 <= len(axis.ticks) == len(axis.labels) <= 12


def test_a_gap_is_not_drawn_over() -> None:
    chart = line_chart("gap", [Line("a", 0, [1, 2, 3, 4, 5], [1.0, 2.0, None, 3.0, 4.0])], "s", "")
    assert chart.count("<polyline") == 2


def test_all_is_inside_the_picture_and_peaks_stay() -> None:
    ys: list[float | None] = [0.1] * 5_000
    ys[1_234] = 0.9
    chart = line_chart("peak", [Line("a", 0, list(range(5_000)), ys)], "s", "%", y_low=0.0)
    points = [tuple(map(float, pair.split(","))) for pair in re.findall(r'points="([^"]*)"', chart)[0].split()]
    assert len(points) <= MOST_POINTS + 2
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points)
    top, bottom = min(y for _, y in points), max(y for _, y in points)
    assert bottom - top > HEIGHT / 2


def test_one_point_is_seen() -> None:
    assert '<circle cx="' in line_chart("one", [Line("a", 0, [1.0], [0.5])], "rows", "")


def test_more_lines_than_colours_get_dashes() -> None:
    assert len({line_class(style) for style in range(28)}) == 28


def test_bars_add_up() -> None:
    bar = stacked_bar("worker 0", {"input": 1.0, "compute": 2.5, "wait": 0.0}, 4.0, "4 s")
    assert re.findall(r"width:([\d.]+)%", bar) == ["25.00", "62.50"]
    assert ">25%<" in bar
    assert 'title="compute: 62.5%"' in bar
