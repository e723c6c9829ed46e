"""Numbers become ranges of about as many rows each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.data.sources.bins import bin_names, edges_of, in_bins
from paceline.errors import ConfigError


def test_bins_hold_about_as_many_rows_each() -> None:
    numbers = np.random.default_rng(0).lognormal(10, 3, 10_000)
    edges = edges_of("income", 8, pa.array(numbers))
    assert len(edges) == 7
    counts = np.bincount(np.searchsorted(edges, numbers, side="right"))
    assert counts.min() > 1_200
    assert counts.max() < 1_300


@given(st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=50), st.integers(2, 12))
def test_edges_rise_and_separate_numbers(numbers: list[float], count: int) -> None:
    edges = edges_of("x", count, pa.array(numbers))
    assert edges == sorted(set(edges))
    assert len(edges) < count
    if len(set(numbers)) > 1 and len(set(numbers)) <= count:
        assert len(edges) == len(set(numbers)) - 1


def test_few_numbers_have_bins_of_their_own() -> None:
    assert edges_of("rooms", 10, pa.array([0] * 90 + [1] * 9 + [2])) == [1, 2]
    assert edges_of("same", 10, pa.array([7, 7])) == []


def test_what_is_not_a_number_does_not_count() -> None:
    assert edges_of("x", 4, pa.array([b"1", b"", b"oops", b"3", b"nan"])) == [3]
    with pytest.raises(ConfigError, match="`bins` has `x`, which has no number in the first rows"):
        edges_of("x", 4, pa.array([None], pa.float64()))


def test_a_number_belongs_to_the_bin_whose_lower_edge_it_reaches() -> None:
    numbers: Any = np.array([17.9, 18, 64, 65, 1e9, -5])
    present = np.array([True] * 5 + [False])
    cells = in_bins(numbers, present, [18, 65])
    assert cells.to_pylist() == ["..18", "18..65", "18..65", "65..", "65..", None]
    assert bin_names([]) == [".."]
