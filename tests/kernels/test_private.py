"""Private copies: which rows they are, when they are merged, and how much of a change is added."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.data.sparse.batch import Batch
from paceline.kernels.jit import compiled
from paceline.kernels.private import (
    HIDDEN,
    Private,
    mean_products,
    merge_all,
    merge_due,
    merge_hidden,
    name_keys,
    names_of,
    replace_keys,
    with_room_ahead,
)  # fmt: skip
from paceline.kernels.tables import TableArrays
from paceline.parameters.optimizers import rule_at
from paceline.settings import OptimizerConfig

BIAS, FIRST = 1100, 1120


def table_of(rate: float, num_rows: int) -> TableArrays:
    rule = rule_at(OptimizerConfig(name="sgd", learning_rate=rate), 0)
    return TableArrays(rule, rule, np.zeros(num_rows, np.float32), BIAS)


def copies(num_hot: int, num_workers: int = 2, first: int = FIRST, **more: Any) -> Private:
    products = np.ones(num_hot + 1, np.float32)
    settings: dict[str, Any] = {"batch_size": 1, "curvature": 0.25, "products": products} | more
    return Private(first, num_hot, np.zeros(num_hot + 1, np.float32), np.zeros(2, np.int64), num_workers, **settings)


@pytest.mark.parametrize(
    ("before", "now", "merged"),
    [
        (0, 256, 256),
        (256, 512, 256),
        (768, 1024, 1024),
        (1024, 1280, 256),
        (3840, 4096, 1024),
        (200, 300, 256),
        (900, 1900, 1024),
    ],
)
def test_each_level_is_merged_when_it_is_due(before: int, now: int, merged: int) -> None:
    """The 256 hottest every 256 rows, the next 768 every 1,024; the bias whenever any is."""
    arrays, private = table_of(0.0, FIRST + 1025), copies(1024)
    arrays.numbers[FIRST:] = 1
    private.num_rows[0] = now
    merge_due(arrays, private, now - before)
    assert arrays.numbers[:1024].tolist() == [1.0] * merged + [0.0] * (1024 - merged)
    assert arrays.numbers[BIAS] == 1
    assert private.base[:1024].sum() == merged


@pytest.mark.parametrize("rate", [1e-9, 0.01, 1.0, 1e3])
@pytest.mark.parametrize("num_workers", [1, 2, 16])
def test_all_workers_together_go_the_whole_way_at_most(rate: float, num_workers: int) -> None:
    """Each worker descends a parabola by itself, 64 steps long; what they add up to is hardly beyond its bottom."""
    stride, curvature = 16, 0.25
    arrays = table_of(rate, FIRST + num_workers * stride)
    way = 1 - (1 - min(rate * curvature, 1)) ** 64
    for rank in range(num_workers):
        # A quarter of what `products` say counts, so that this is the curvature of one key alone.
        private = copies(1, num_workers, FIRST + rank * stride, products=np.full(2, 4, np.float32))
        private.num_rows[0] = 64
        arrays.numbers[private.first] = way
        merge_all(arrays, private)
    moved = arrays.numbers[0]
    assert moved <= 1.1
    assert moved >= min(0.9, 0.9 * num_workers * way)
    if rate < 1e-6 or num_workers == 1:
        assert moved == pytest.approx(num_workers * way, rel=1e-5)


@compiled
def find_names(private: Any, rows: Any, order: Any, i: int, out: Any) -> None:
    names, shift = names_of(private, rows, order, i)
    for k in range(np.uint64(rows.offsets[order[i]]), np.uint64(rows.offsets[order[i] + 1])):
        out[k] = names[k + shift]


def test_names_of_rows_to_come_lie_side_by_side() -> None:
    keys = [[5, 0], [], [9, 1, 2, 3], [1]]
    rows = Batch.from_lists([0, 1, 0, 1], keys, [[1.0] * len(found) for found in keys])
    order = np.tile(np.asarray([2, 3, 1, 0], np.int32), 4)
    private = with_room_ahead(copies(2, first=100), 4)
    for i in range(len(order)):
        name_keys(private, rows, order, i)
    for i, row in enumerate(order):
        found = np.zeros_like(rows.keys)
        find_names(private, rows, order, i, found)
        expected = [key + 100 if key < 2 else key for key in keys[row]]
        assert found[rows.offsets[row] : rows.offsets[row + 1]].tolist() == expected


def test_copies_behind_four_billion_keys_have_wider_numbers_than_keys() -> None:
    num_keys = (1 << 32) - 1
    assert with_room_ahead(copies(2, first=num_keys - 2), 4).ahead.dtype == np.uint32
    assert with_room_ahead(copies(2, first=num_keys), 4).ahead.dtype == np.uint64


def test_nothing_is_hidden_after_a_merge_at_pace_n() -> None:
    arrays, private = table_of(0.0, FIRST + 1025), copies(1024, clocks=4)
    arrays.numbers[FIRST:] = 1
    private.num_rows[HIDDEN] = 3
    merge_hidden(arrays, private)
    assert arrays.numbers[:1024].tolist() == [1.0] * 1024
    assert arrays.numbers[BIAS] == 1
    assert private.num_rows[HIDDEN] == 0


def test_rows_of_copies_take_the_place_of_hot_keys() -> None:
    keys = np.array([1000, 3, 7, 2], np.uint32)
    replace_keys(keys, 4, 1200)
    assert keys.tolist() == [1000, 1203, 7, 1202]


def test_products_are_means_over_rows() -> None:
    offsets = np.array([0, 2, 3, 5])
    keys, values = np.array([0, 9, 1, 1, 0], np.uint32), np.array([1, -2, 3, -0.5, 2], np.float32)
    out = np.zeros(3, np.float32)
    mean_products(offsets, keys, values, out)
    totals = [1 + 1 + 2, 1 + 3, 1 + 0.5 + 2]
    expected = [(1 * totals[0] + 2 * totals[2]) / 3, (3 * totals[1] + 0.5 * totals[2]) / 3, sum(totals) / 3]
    assert out.tolist() == pytest.approx(expected)
