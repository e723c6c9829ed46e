"""The table, its private copies, and what it may cost."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from paceline.config import SPARSE_OPTIMIZERS, OptimizerConfig
from paceline.errors import ConfigError
from paceline.parameters.table import Shard


@pytest.mark.parametrize("name", SPARSE_OPTIMIZERS)
def test_settling_adds_up_what_every_worker_changed(name: str) -> None:
    shard = Shard(OptimizerConfig(name=name), features=100, num_workers=3, num_private=20)
    shard.states[:] = 7
    shard.settle()
    width = shard.width
    for rank in range(3):
        first, base = shard.private(rank)
        own = shard.table[first * width : (first + 21) * width].reshape(21, width)
        assert (own == 7).all()
        own += 10**rank
        assert (base[: 21 * width] == 7).all()
    shard.settle()
    assert (shard.states[:20] == 118).all()
    assert (shard.states[20:100] == 7).all()
    assert (shard.states[100] == 118).all()
    before = shard.table.copy()
    shard.settle()
    assert np.array_equal(shard.table, before)


def test_private_parts_do_not_share_cache_lines_with_each_other() -> None:
    """16 weights make a line, so 16 keys between two parts keep them apart wherever the array begins."""
    shard = Shard(OptimizerConfig(name="sgd"), features=100, num_workers=4, num_private=15)
    firsts = [shard.private(rank)[0] for rank in range(4)]
    assert all(b - a >= 16 + 16 for a, b in pairwise(firsts))
    assert firsts[0] > 100


def test_a_model_that_does_not_fit_in_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"1,000,000,000,000 features needs 8,?000\.0 GB") as error:
        Shard(OptimizerConfig(name="adagrad"), features=10**12, num_workers=1, num_private=0)
    assert "--hash-bits" in error.value.hint
