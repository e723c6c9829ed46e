"""Rows as they are laid out for a GPU."""

from __future__ import annotations

import numpy as np

from paceline.data.sparse.batch import Batch
from paceline.torch.model import torch
from paceline.torch.sparse.rows import (
    NO_COLUMNS,
    HotColumns,
    Packed,
    RowShape,
    choose_columns,
    pack,
    shape_of,
    tensors_of,
    to_gpu,
)

ROWS = Batch.from_lists(
    [1, 0, 1, 0],
    [[0, 1, 2, 9], [2, 1, 5], [], [0, 0, 2, 7]],
    [[0.5, 1.0, 1.0, 1.0], [1.0, 3.0, 1.0], [], [2.0, 4.0, 1.0, 1.0]],
)
FEATURES = 10
COLUMNS = HotColumns(np.array([0]), np.array([2, 1]))


def listed_in(packed: Packed) -> list[list[tuple[int, float]]]:
    """The keys and values that each row lists."""
    values = np.ones(len(packed.keys)) if packed.values is None else packed.values
    ends = np.cumsum(packed.lengths)
    pairs = [*zip(packed.keys.tolist(), values.tolist(), strict=True)]
    return [pairs[end - count : end] for end, count in zip(ends, packed.lengths, strict=True)]


def test_hot_keys_are_columns_and_the_rest_is_listed() -> None:
    packed = pack(ROWS, COLUMNS, FEATURES)
    assert packed.numbers[:, 0].tolist() == [0.5, 0, 0, 2]
    # Key 2 is the first bit, key 1 the second, where its value is 1.
    assert packed.bits[:, 0].tolist() == [3, 1, 0, 1]
    # A key with another value than 1, and one that a row has twice, are listed.
    assert listed_in(packed) == [[(9, 1)], [(1, 3), (5, 1)], [], [(0, 4), (7, 1)]]


def test_without_columns_everything_is_listed() -> None:
    packed = pack(ROWS, NO_COLUMNS, 1 << 40)
    assert packed.numbers.shape == packed.bits.shape == (4, 0)
    assert packed.keys.tolist() == ROWS.keys.tolist()
    assert packed.values is not None
    assert packed.values.tolist() == ROWS.values.tolist()


def test_values_that_are_all_one_are_left_out() -> None:
    assert pack(ROWS._replace(values=np.ones(11, np.float32)), NO_COLUMNS, FEATURES).values is None


def test_columns_are_the_keys_of_many_rows() -> None:
    found = choose_columns(ROWS, 3, most_bits=2)
    assert (found.numbers.tolist(), found.bits.tolist()) == ([0, 1], [2])
    assert choose_columns(ROWS, 2, most_bits=0).bits.tolist() == []
    assert choose_columns(ROWS, 3, most_bits=2, most_numbers=1).numbers.tolist() == [0]
    assert choose_columns(ROWS, 0, most_bits=2).places.tolist() == []


def test_blocks_follow_each_other() -> None:
    packed = [pack(rows, COLUMNS, FEATURES) for rows in (ROWS, ROWS.slice(1, 3))]
    shape = shape_of(packed, COLUMNS, FEATURES)
    assert shape == RowShape(
        weighted=False, ones=False, numbers=1, words=1, listed=16, one_chunk=True, length_bytes=1, key_bits=4
    )
    found = to_gpu([tensors_of(block, shape, pinned=False) for block in packed], shape, torch.device("cpu"))
    assert found.starts.tolist() == [0, 1, 3, 3, 5, 7]
    assert found.keys.tolist() == [9, 1, 5, 0, 7, 1, 5]
    assert found.key_values.tolist() == [1, 3, 1, 4, 1, 3, 1]
    assert len(found.weights) == 0


def test_rows_travel_with_fewer_bytes_than_they_take() -> None:
    """Ten bits per key of a thousand, and a byte per length."""
    rows = Batch.from_lists([0, 1] * 32, [[*range(i, i + 20)] for i in range(64)], [[1.0] * 20] * 64)
    packed = pack(rows, NO_COLUMNS, 1000)
    tensors = tensors_of(packed, shape_of([packed], NO_COLUMNS, 1000), pinned=False)
    assert tensors.num_bytes == 64 + 64 + 64 * 20 * 10 // 8 + 8


def test_long_rows() -> None:
    rows = Batch.from_lists([0], [[*range(300)]], [[1.0] * 300])
    packed = pack(rows, NO_COLUMNS, 300)
    shape = shape_of([packed], NO_COLUMNS, 300)
    found = to_gpu([tensors_of(packed, shape, pinned=False)], shape, torch.device("cpu"))
    assert found.lengths.tolist() == [300]
    assert found.keys.tolist() == [*range(300)]


def test_keys_that_a_model_does_not_know_become_one() -> None:
    """Larger ones would be negative among the integers of 32 bits."""
    rows = Batch(
        np.zeros(1, np.uint8),
        np.array([0, 3]),
        np.array([7, 1 << 31, (1 << 40) + 3], np.uint64),
        np.ones(3, np.float32),
    )
    assert pack(rows, NO_COLUMNS, 8).keys.tolist() == [7, 8, 8]
