"""Traces of products of random matrices: exact sums, however they are cut."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.kernels.random_blocks import add_products
from paceline.matrices import trace
from paceline.matrices.trace import RandomPairs


@pytest.mark.parametrize("most", [1, 7, 30])
def test_sums_of_many_products_are_made_in_squares(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """The same bits, and never more at a time than two parts of 64 bits can hold."""
    pairs = RandomPairs(101, 77, 2, 3, 1, 2)
    whole = [pairs.sum_of(pair) for pair in pairs.pairs()]
    sizes: list[int] = []

    def counted(seeds: Any, top: int, bottom: int, start: int, stop: int, *rest: Any) -> None:
        sizes.append((bottom - top) * (stop - start))
        add_products(seeds, top, bottom, start, stop, *rest)

    monkeypatch.setattr(trace, "MOST_SIDE", most)
    monkeypatch.setattr(trace, "add_products", counted)
    assert [pairs.sum_of(pair) for pair in pairs.pairs()] == whole
    assert sum(sizes) == 101 * 77
    assert max(sizes) <= most**2
