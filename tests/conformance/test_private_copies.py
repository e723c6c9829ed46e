"""Private copies of hot keys: at pace async alone, merged on the way, and nothing of them lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from paceline.kernels.private import Private, merge_due
from paceline.kernels.tables import TableArrays
from paceline.parameters.keyed import PrivateCopies
from paceline.parameters.optimizers import rule_at
from paceline.settings import OptimizerConfig


@pytest.mark.parametrize(
    ("pace", "batch_size", "workers", "private"),
    [("async", 1, 2, True), ("async", 1, 1, False), ("async", 5, 2, True), (3, 1, 2, False), ("sync", 1, 2, False)],
)
def test_where_they_are_used(
    tmp_path: Path,
    clicks: Path,
    monkeypatch: pytest.MonkeyPatch,
    pace: Any,
    batch_size: int,
    workers: int,
    private: bool,
) -> None:
    seen: list[int] = []

    def remember(private: PrivateCopies, *arguments: Any) -> None:
        make(private, *arguments)
        seen.append(private.num_hot)

    make = PrivateCopies.__init__
    monkeypatch.setattr(PrivateCopies, "__init__", remember)
    paceline.train(data=clicks, run=tmp_path / "run", pace=pace, batch_size=batch_size, workers=workers, steps=1)
    assert (seen[0] > 0) == private


def test_each_level_is_merged_when_it_is_due() -> None:
    """The 64 hottest every 64 rows, the next 192 every 256, the next 768 every 1,024; the bias whenever any is."""
    num_hot, bias, first = 1024, 1100, 1120
    table = np.zeros(first + num_hot + 1, np.float32)
    base = np.zeros(num_hot + 1, np.float32)
    num_rows = np.zeros(1, np.int64)
    private = Private(first, num_hot, base, num_rows, 2, 1, 0.0, np.ones(num_hot + 1, np.float32))
    rule = rule_at(OptimizerConfig(name="sgd", learning_rate=0.5), 0)
    for row, merged in ((64, 64), (128, 64), (256, 256), (320, 64), (1024, 1024)):
        table[:] = 0
        base[:] = 0
        table[first:] = 1
        num_rows[0] = row
        merge_due(TableArrays(rule, rule, table, bias), private, 64)
        assert table[:num_hot].tolist() == [1.0] * merged + [0.0] * (num_hot - merged)
        assert table[bias] == 1
        assert base[:num_hot].sum() == merged
