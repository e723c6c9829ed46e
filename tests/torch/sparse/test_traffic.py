"""Bytes that training on a row moves, against counts by hand."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.data.sparse.batch import Batch
from paceline.parameters.layout import Group, TableLayout
from paceline.settings import OptimizerConfig
from paceline.torch.sparse.rows import NO_COLUMNS, HotColumns, Packed, pack
from paceline.torch.sparse.traffic import bytes_per_row, narrower_tables, num_bytes, sectors


def packed(columns: HotColumns = NO_COLUMNS) -> Packed:
    """Four rows, each with key 0 and one of two more."""
    rows = Batch.from_lists([0] * 4, [[0, 1 + row % 2] for row in range(4)], [[1.0, 1.0]] * 4)
    return pack(rows, columns, 3)


def test_rows_and_the_numbers_of_their_distinct_keys() -> None:
    rows = packed()
    # Two keys of four bytes, a length of four and a label of one byte; and eight bytes for where the keys begin.
    assert num_bytes(rows) == 4 * (2 * 4 + 4 + 1)
    assert bytes_per_row(rows, 4, [2]) == [13 + 8 + 2 * 32 * 3 / 4]
    # A launch of one row looks both of its keys up.
    assert bytes_per_row(rows, 1, [2]) == [13 + 8 + 2 * 32 * 2]
    assert bytes_per_row(rows, 1_000_000, [18]) == [13 + 8 + 2 * 32 * 3 * 3 / 4]


def test_hot_columns_are_not_looked_up() -> None:
    columns = HotColumns(np.zeros(0, np.int64), np.array([0]))
    assert bytes_per_row(packed(columns), 4, [2]) == [4 + 4 + 4 + 1 + 8 + 2 * 32 * 2 / 4]


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 11, 16, 18, 33])
def test_sectors_against_counting(width: int) -> None:
    """The keys of a table, one after the other."""
    first = 4 * width * np.arange(64)
    touched = (first + 4 * width - 1) // 32 - first // 32 + 1
    assert sectors(width) == pytest.approx(touched.mean())


def table(*groups: tuple[str, int, str, dict[str, float]]) -> TableLayout:
    return TableLayout(
        10, tuple(Group(name, dim, OptimizerConfig(name=optimizer, own=own)) for name, dim, optimizer, own in groups)
    )


def test_flags_that_make_a_table_narrower() -> None:
    assert narrower_tables(table(("weight", 1, "sgd", {}))) == {}
    assert narrower_tables(table(("weight", 1, "ftrl", {}))) == {"--optimizer sgd": 1}
    factors = table(("weight", 1, "adagrad", {}), ("factors", 8, "adagrad", {}))
    assert factors.width == 18
    assert narrower_tables(factors) == {
        "--optimizer sgd": 17, "--set factors.optimizer=sgd": 10, "--set factors.row_wise=true": 11, "--dim 4": 10,
    }  # fmt: skip
    row_wise = table(("weight", 1, "adagrad", {}), ("factors", 8, "adagrad", {"row_wise": 1.0}))
    assert narrower_tables(row_wise) == {"--optimizer sgd": 10, "--set factors.optimizer=sgd": 10, "--dim 4": 7}
