"""Arrays that rows may have to do without."""

from __future__ import annotations

import numpy as np

from paceline.kernels.keys import MARKS, merge_repeats
from paceline.kernels.optional import row_weight
from paceline.kernels.reading import RowSlice, addresses, read_slice
from tests.data.inputs import with_weights_and_fields


def test_rows_without_weights_count_one() -> None:
    assert row_weight(None, 3) == 1
    assert row_weight(np.array([0.5, 2], np.float32), 1) == 2


def test_a_key_stays_in_the_first_of_its_fields() -> None:
    offsets, keys = np.array([0, 4, 6]), np.array([5, 9, 5, 7, 1, 2], np.uint32)
    values, fields = np.arange(1, 7, dtype=np.float32), np.array([0, 1, 2, 3, 4, 5], np.uint16)
    left = merge_repeats(offsets, keys, values, fields, np.zeros((16, 2), np.uint64), np.zeros(MARKS, np.uint32))
    assert offsets.tolist() == [0, 3, 5]
    assert (keys[:left].tolist(), values[:left].tolist()) == ([5, 9, 7, 1, 2], [4, 2, 4, 5, 6])
    assert fields[:left].tolist() == [0, 1, 3, 4, 5]


def test_slices_have_the_weights_and_fields_of_their_rows() -> None:
    rows = with_weights_and_fields(20)
    order = np.random.default_rng(1).permutation(20).astype(np.int32)
    size = rows.num_nonzeros
    out = RowSlice(
        np.zeros(21, np.int64), np.zeros(size, np.uint32), np.zeros(size, np.float32), np.zeros(20, np.uint8),
        np.zeros(1, np.int64), np.zeros(20, np.float32), np.zeros(size, np.uint16),
    )  # fmt: skip
    assert read_slice(addresses([(0, order, rows)]), 4, 9, out)
    assert rows.weights is not None
    assert out.weights[:5].tolist() == rows.weights[order[4:9]].tolist()
    expected = [field for row in order[4:9] for field in rows.slice(row, row + 1).fields.tolist()]  # type: ignore[union-attr]
    assert out.fields[: out.offsets[5]].tolist() == expected
