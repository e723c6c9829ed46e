from __future__ import annotations

import numpy as np

from paceline.data.sparse.batch import Batch, concatenate
from tests.data.inputs import rows_of_batch

ROWS = Batch.from_lists([1, 0, 1], [[3, 5], [], [7]], [[1.0, 0.5], [], [2.0]])


def test_slices_and_selections_are_batches_of_their_own() -> None:
    assert rows_of_batch(ROWS.slice(1, 3)) == [(0, {}), (1, {7: 2.0})]
    assert rows_of_batch(ROWS.select(np.array([True, False, True]))) == [(1, {3: 1.0, 5: 0.5}), (1, {7: 2.0})]
    assert rows_of_batch(ROWS.slice(2, 2)) == []


def test_concatenating_slices_gives_the_whole() -> None:
    pieces = [ROWS.slice(0, 1), ROWS.slice(1, 1), ROWS.slice(1, 3)]
    assert rows_of_batch(concatenate(pieces)) == rows_of_batch(ROWS)
    assert concatenate([ROWS]) is ROWS


def test_sizes() -> None:
    assert (ROWS.num_rows, ROWS.num_nonzeros) == (3, 3)
