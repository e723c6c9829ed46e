"""The fold adds ranks in their order, whatever the parts, for as many clocks as one likes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.kernels.steps import fold_part
from paceline.kernels.tables import TableArrays
from paceline.parameters.layout import Group, TableLayout
from paceline.parameters.scratch import Fold, Pushes
from paceline.settings import OptimizerConfig

BIAS = 100
SGD = OptimizerConfig(name="sgd", learning_rate=1.0)


def layout(dim: int) -> TableLayout:
    return TableLayout(BIAS, (Group("values", dim, SGD),))


def fold(pushed: list[dict[int, float]], parts: int, times: int = 1, dim: int = 1) -> np.ndarray[Any, Any]:
    """The first column after this many updates by what each rank pushed, one row per rank; other columns get more."""
    pushes = Pushes.make(len(pushed), parts, 200, layout(dim))
    for rank, sums in enumerate(pushed):
        by_column = np.outer(list(sums.values()), np.arange(1, dim + 1))
        pushes.take(rank, np.array(list(sums), np.uint32), by_column.astype(np.float32).ravel())
    table = np.zeros((BIAS + 1, dim), np.float32)
    folds = [Fold.make(200, 20, layout(dim)) for _ in range(parts)]
    for _ in range(times):
        for part in range(parts):
            arrays = TableArrays(*layout(dim).rules_at(0), table.ravel(), BIAS)
            fold_part(arrays, pushes, folds[part], part, 1)
    for column in range(1, dim):
        assert table[:, column].tolist() == ((column + 1) * table[:, 0]).tolist()
    return table[:, 0]


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_sums_are_added_rank_by_rank(parts: int) -> None:
    """1e8 + 1 − 1e8 is 0 in float32 in this order, and 1 in others."""
    for key in (3, 50, BIAS):
        pushed = [{key: 1e8}, {key: 1.0}, {key: -1e8}]
        assert fold(pushed, parts)[key] == 0
        assert fold([pushed[0], pushed[2], pushed[1]], parts)[key] == -1


@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("dim", [1, 3])
def test_every_key_counts_once_for_more_clocks_than_there_are_marks(parts: int, dim: int) -> None:
    pushed: list[dict[int, float]] = [dict.fromkeys(range(rank, BIAS + 1, rank + 1), 1.0) for rank in range(3)]
    once = [-float(sum(key in sums for sums in pushed)) for key in range(BIAS + 1)]
    assert fold(pushed, parts, times=700, dim=dim).tolist() == [700 * total for total in once]


def test_a_rank_without_rows_adds_nothing() -> None:
    assert fold([{}, {4: 2.0}, {}], parts=2)[4] == -2
