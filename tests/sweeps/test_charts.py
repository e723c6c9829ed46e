"""The loss against what a sweep varied."""

from __future__ import annotations

import re
from typing import Any

import pytest

from paceline.reports.measures import MEASURES
from paceline.sweeps.charts import against_settings

LOSS = next(measure for measure in MEASURES if measure.name == "test_loss")


def drawn(points: list[dict[str, Any]], losses: list[float]) -> list[tuple[str, int]]:
    """The titles of the charts, and how many lines each has."""
    found = "".join(against_settings(points, [{"test": {"loss": loss}} for loss in losses], LOSS))
    charts = re.findall(r"<svg class=\"chart\".*?</svg>", found)
    return [(re.findall('aria-label="([^"]*)"', chart)[0], chart.count("<polyline")) for chart in charts]


def test_one_setting_is_one_line_on_a_logarithmic_axis() -> None:
    points: list[dict[str, Any]] = [{"rate": rate} for rate in (0.001, 1.0, 0.1)]
    assert drawn(points, [0.5, 0.4, 0.3]) == [("test loss against rate, by rate, log scale", 1)]


def test_each_value_of_another_setting_has_a_line() -> None:
    points: list[dict[str, Any]] = [{"pace": pace, "rate": rate} for pace in ("sync", "async") for rate in (1, 2, 3)]
    assert [lines for _, lines in drawn(points, [0.1 * i for i in range(1, 7)])] == [3, 2]


def test_settings_that_go_together_are_one_line() -> None:
    points: list[dict[str, Any]] = [{"a": 1, "b": 10}, {"a": 2, "b": 20}]
    assert [lines for _, lines in drawn(points, [0.5, 0.4])] == [1, 1]


@pytest.mark.parametrize("points", [[{"a": 1}], [{"a": 1}, {"a": 1, "b": [2]}]])
def test_nothing_is_drawn_of_one_value(points: list[dict[str, Any]]) -> None:
    assert not any("against a" in title for title, _ in drawn(points, [0.5] * len(points)))
