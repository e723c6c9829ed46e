"""Gains as bars."""

from __future__ import annotations

import re

from paceline.reports.gains import gain_bars


def test_the_largest_gain_fills_the_width_and_comes_first() -> None:
    drawn = "".join(gain_bars({"input": 1.5, "network": 3.0}, {"input": 1.25, "network": 2.0}))
    assert drawn.index(">network<") < drawn.index(">input<")
    assert re.findall(r"width:([\d.]+)%", drawn) == ["50.00", "50.00", "12.50", "12.50"]
    assert "2.00× – 3.00×" in drawn


def test_a_gain_without_bound_is_told_and_cut() -> None:
    drawn = "".join(gain_bars({"input": None, "network": 1.0}, {"input": 2.0, "network": 1.0}))
    assert "2.00× – over 99×" in drawn
    assert "no gain" in drawn


def test_no_gain_at_all_is_not_drawn() -> None:
    assert gain_bars({"input": 1.0}, {"input": 1.0}) == []
    assert gain_bars({}, {}) == []
