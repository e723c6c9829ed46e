"""Columns become texts to be hashed."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paceline.data.limits import ColumnKind
from paceline.data.sources.features import read_features


def texts(kind: ColumnKind, column: Any) -> dict[str, list[Any]]:
    features, problems = read_features("c", kind, column, {"c": [2.0]})
    assert problems == {}
    return {feature.name: feature.cells.cast(pa.string()).to_pylist() for feature in features}


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([1, None, -3], ["1", None, "-3"]),
        ([1.0, 0.5, None], ["1", "0.5", None]),
        ([True, False, None], ["true", "false", None]),
        ([decimal.Decimal("3.50"), None], ["3.50", None]),
        ([datetime.date(2026, 11, 18), None], ["2026-11-18", None]),
    ],
)
def test_categories_are_what_cells_look_like(cells: list[Any], expected: list[Any]) -> None:
    column = pa.array(cells)
    assert texts("text", column) == {"c": expected}
    if not pa.types.is_boolean(column.type):
        assert texts("text", column.dictionary_encode()) == {"c": expected}


def test_times_are_hours_and_days() -> None:
    moment = pa.array([datetime.datetime(2026, 11, 18, 21), None])
    assert texts("timestamp", moment) == {"c.hour": ["21", None], "c.weekday": ["Wed", None]}
    assert texts("timestamp", moment.cast(pa.string())) == {"c.hour": ["21", None], "c.weekday": ["Wed", None]}
    assert texts("date", moment.cast(pa.date32())) == {"c.weekday": ["Wed", None]}
    assert texts("time", moment.cast(pa.time64("us"))) == {"c.hour": ["21", None]}


def test_bins_are_ranges() -> None:
    assert texts("bins", pa.array([1, 2, None])) == {"c": ["..2", "2..", None]}
    _, problems = read_features("c", "bins", pa.array(["1", "x"]), {"c": [2.0]})
    assert problems == {1: "`x` is not a number"}


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.large_list(pa.float32()), pa.list_(pa.int64(), 2)])
def test_elements_of_lists_know_their_rows(kind: Any) -> None:
    column = pa.array([[9, 9], [1, 2], None, [3, None]], kind)[1:]
    (feature,), _ = read_features("c", "list", column, {})
    assert feature.rows is not None
    np.testing.assert_array_equal(feature.rows, [0, 0, 2, 2])
    assert feature.cells.to_pylist() == ["1", "2", "3", None]
