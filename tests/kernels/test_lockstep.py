"""The fold adds ranks in their order, whatever the parts, for as many clocks as one likes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.config import OptimizerConfig
from paceline.kernels.lockstep import fold_part
from paceline.models.logistic import Fold
from paceline.parameters.optimizers import rules_at
from paceline.training.embedded.lockstep import Pushes

UINT32 = np.dtype(np.uint32)
BIAS = 100
RULES = rules_at(OptimizerConfig(name="sgd", learning_rate=1.0), 0)


def fold(pushed: list[dict[int, float]], parts: int, times: int = 1) -> np.ndarray[Any, Any]:
    """The table after so many updates of what each rank pushed, one row a rank."""
    pushes = Pushes.make(len(pushed), 200, UINT32)
    for rank, sums in enumerate(pushed):
        pushes.keys[rank, : len(sums)] = list(sums)
        pushes.sums[rank, : len(sums)] = list(sums.values())
        pushes.counts[rank, 0] = len(sums)
    table = np.zeros(BIAS + 1, np.float32)
    folds = [Fold.make(200, 20, UINT32) for _ in range(parts)]
    for _ in range(times):
        for part in range(parts):
            fold_part(*RULES, table, BIAS, pushes, folds[part], part, parts, 1)
    return table


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_sums_are_added_rank_by_rank(parts: int) -> None:
    """1e8 + 1 − 1e8 is 0 in float32 in this order, and 1 in others."""
    for key in (3, 50, BIAS):
        pushed = [{key: 1e8}, {key: 1.0}, {key: -1e8}]
        assert fold(pushed, parts)[key] == 0
        assert fold([pushed[0], pushed[2], pushed[1]], parts)[key] == -1


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_every_key_counts_once_for_more_clocks_than_there_are_marks(parts: int) -> None:
    pushed: list[dict[int, float]] = [dict.fromkeys(range(rank, BIAS + 1, rank + 1), 1.0) for rank in range(3)]
    once = [-float(sum(key in sums for sums in pushed)) for key in range(BIAS + 1)]
    assert fold(pushed, parts, times=700).tolist() == [700 * total for total in once]


def test_a_rank_without_rows_adds_nothing() -> None:
    assert fold([{}, {4: 2.0}, {}], parts=2)[4] == -2
