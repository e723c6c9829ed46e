"""What is different about a table on a GPU; `conformance/test_stores.py` has the rest."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.errors import ConfigError
from paceline.parameters.keyed import KeyedStore
from paceline.parameters.layout import Group, Initial, TableLayout
from paceline.settings import OptimizerConfig
from paceline.torch.sparse.table import GpuTable
from paceline.torch.sparse.triton_ import find_device

ADAGRAD = OptimizerConfig(name="adagrad", learning_rate=0.1)


def test_values_begin_as_on_the_cpu() -> None:
    groups = Group("weight", 1, ADAGRAD), Group("factors", 3, ADAGRAD, Initial("normal", 0.1))
    layout = TableLayout(30, groups, seed=4, bias_start=0.7)
    hot = [7, 2]
    expected = KeyedStore(layout, hot_keys=hot).states
    found = GpuTable(layout, find_device(), hot)
    np.testing.assert_array_equal(found.states, expected)
    assert found.states[-1, 0] == np.float32(0.7)


def test_states_are_rearranged_where_they_are() -> None:
    table = GpuTable(TableLayout(3, (Group("weight", 1, ADAGRAD),)), find_device())
    table.load(0, np.arange(8, dtype=np.float32).reshape(4, 2))

    def reverse(states: object) -> None:
        assert isinstance(states, np.ndarray)
        states[:] = states[::-1].copy()

    table.rearrange(reverse)
    assert table.states.tolist() == [[6, 7], [4, 5], [2, 3], [0, 1]]


def test_an_optimizer_that_has_no_update_by_key_is_refused() -> None:
    momentum = OptimizerConfig(name="sgd", learning_rate=0.1, own={"momentum": 0.9})
    with pytest.raises(ConfigError, match="no update on a GPU"):
        GpuTable(TableLayout(3, (Group("weight", 1, momentum),)), find_device())
