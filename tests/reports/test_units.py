"""Numbers with their units."""

from __future__ import annotations

import pytest

from paceline.reports.units import quantity


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(0.0, "s", "0.00 microseconds"), (123.4, "s", "123 seconds"), (2e6, "rows", "2.00 million rows")],
)
def test_quantities_read_well(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit) == text
