from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paceline.data.sparse.batch import Batch
from paceline.data.sparse.key_order import NO_COUNTS, KeyOrder, most_frequent
from tests.data.inputs import rows_of_batch

KEYS = st.one_of(st.integers(0, 12), st.integers(0, 2**32 - 1))
ROWS = st.lists(st.lists(KEYS, max_size=60), max_size=12)


@given(ROWS)
def test_repeated_keys_of_a_row_are_added(rows: list[list[int]]) -> None:
    values = [[float(2 ** (k % 10)) for k in range(len(row))] for row in rows]
    batch = Batch.from_lists([0] * len(rows), rows, values)
    expected = []
    for row, row_values in zip(rows, values, strict=True):
        sums: Counter[int] = Counter()
        for key, value in zip(row, row_values, strict=True):
            sums[key] += value  # type: ignore[assignment]
        expected.append((0, dict(sums)))
    result = batch.distinct()
    assert rows_of_batch(result) == expected
    assert [list(features) for _, features in rows_of_batch(result)] == [list(sums) for _, sums in expected]


def test_long_rows_with_repeats() -> None:
    keys = np.tile(np.arange(5000), 2)
    result = Batch.from_lists([1], [keys.tolist()], [[1.0] * 10000]).distinct()
    assert result.num_nonzeros == 5000
    assert (result.values == 2).all()


@given(st.lists(st.integers(0, 30), max_size=200), st.integers(1, 40))
def test_the_most_frequent_keys(keys: list[int], most: int) -> None:
    expected = sorted(Counter(keys).items(), key=lambda item: (-item[1], item[0]))[:most]
    found, counts = most_frequent([np.array(keys[:50], np.uint32), np.array(keys[50:], np.uint32)], most)
    assert list(zip(found.tolist(), counts.tolist(), strict=True)) == sorted(expected)


@given(st.lists(st.integers(0, 300), unique=True, max_size=60), st.sampled_from([0, 2**32 - 2, 2**40]))
def test_key_order_is_a_permutation_that_puts_hot_keys_first(hot: list[int], shift: int) -> None:
    hot = [key + shift if key > 200 else key for key in hot]
    order = KeyOrder(np.array(hot, np.uint64))
    keys = np.unique(np.array([*range(302), *hot, *(key + shift for key in range(200, 302))], np.uint64))
    numbered = keys.copy()
    counts = np.zeros(len(hot), np.int64)
    order.renumber(numbered, counts)
    by_key = dict(zip(keys.tolist(), numbered.tolist(), strict=True))
    assert [by_key[key] for key in hot] == list(range(len(hot)))
    assert len(set(by_key.values())) == len(keys)
    assert counts.tolist() == [1] * len(hot)


@given(st.lists(st.integers(0, 99), unique=True, max_size=60))
def test_values_travel_with_their_keys(hot: list[int]) -> None:
    order = KeyOrder(np.array(hot, np.uint64))
    numbered = np.arange(100, dtype=np.uint32)
    order.renumber(numbered, NO_COUNTS)
    by_block_key = np.empty(100)
    by_block_key[numbered] = np.arange(100)
    assert order.to_input(by_block_key.copy()).tolist() == list(range(100))
    assert order.to_blocks(np.arange(100.0)).tolist() == by_block_key.tolist()


@given(st.lists(KEYS, unique=True, min_size=1, max_size=60), st.lists(KEYS, max_size=100))
def test_counts_values_and_squares_of_hot_keys(hot: list[int], keys: list[int]) -> None:
    keys += hot[: len(keys)]
    values = np.arange(1, len(keys) + 1, dtype=np.float32)
    sums = np.zeros((len(hot), 3))
    KeyOrder(np.array(hot, np.uint64)).add_up(np.array(keys, np.uint32), values, sums)
    expected = [[value for key, value in zip(keys, values.tolist(), strict=True) if key == wanted] for wanted in hot]
    assert sums.tolist() == [[len(found), sum(found), sum(value**2 for value in found)] for found in expected]
