"""Every optimizer passes this suite: it does what its formula says, in float64, and keeps the promises they share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.kernels.dense import update_range
from paceline.kernels.tables import apply_gradient, read_all
from paceline.parameters.layout import Group, TableLayout
from paceline.parameters.optimizers import OPTIMIZERS, TABLE_OPTIMIZERS, rule_at, updates_of
from paceline.settings import OptimizerConfig
from tests.conformance import formulas

GRADIENTS = st.lists(st.floats(-4, 4, width=32), min_size=1, max_size=30)


def reference(settings: OptimizerConfig, gradients: list[float]) -> float:
    """The weight after these gradients, by the formula in float64."""
    states = np.zeros((1 + updates_of(settings).memory, 1))
    for g in gradients:
        formulas.apply(settings, states, np.array([g]))
    return float(formulas.weights(settings, states)[0])


def learn(settings: OptimizerConfig, gradients: list[float], key: int, bias: int) -> np.ndarray[Any, Any]:
    """All four weights after applying gradients to one key."""
    layout = TableLayout(3, (Group("weight", 1, settings),))
    rules, table = layout.rules_at(0), np.zeros(4 * layout.width, np.float32)
    for g in gradients:
        apply_gradient(*rules, table, bias, np.array([key], np.uint32), np.array([2 * g], np.float32), 2)
    out = np.zeros(4, np.float32)
    read_all(*rules, table, len(out) - 1, out)
    return out


@pytest.mark.parametrize("name", TABLE_OPTIMIZERS)
@pytest.mark.parametrize(("l1", "l2"), [(0.0, 0.0), (0.3, 0.0), (0.0, 0.2), (0.1, 0.1)])
class TestEveryOptimizer:
    @given(gradients=GRADIENTS)
    @settings(max_examples=40, deadline=None)
    def test_follows_its_formula(self, name: str, l1: float, l2: float, gradients: list[float]) -> None:
        config = OptimizerConfig(name=name, learning_rate=0.1, l1=l1, l2=l2)
        weights = learn(config, gradients, key=1, bias=3)
        assert weights[1] == pytest.approx(reference(config, gradients), rel=2e-4, abs=2e-5)

    @given(gradients=GRADIENTS)
    @settings(max_examples=20, deadline=None)
    def test_touches_only_the_keys_of_the_update(self, name: str, l1: float, l2: float, gradients: list[float]) -> None:
        weights = learn(OptimizerConfig(name=name, l1=l1, l2=l2), gradients, key=1, bias=3)
        assert weights[[0, 2, 3]].tolist() == [0, 0, 0]

    def test_never_regularises_the_bias(self, name: str, l1: float, l2: float) -> None:
        gradients = [1.0, -0.25, 0.5]
        config = OptimizerConfig(name=name, learning_rate=0.1, l1=l1, l2=l2)
        free = OptimizerConfig(name=name, learning_rate=0.1)
        assert learn(config, gradients, key=3, bias=3)[3] == pytest.approx(reference(free, gradients), rel=1e-5)

    def test_goes_against_the_gradient(self, name: str, l1: float, l2: float) -> None:
        config = OptimizerConfig(name=name, learning_rate=0.1, l1=l1, l2=l2)
        assert learn(config, [1.0] * 5, key=1, bias=3)[1] < 0 < learn(config, [-1.0] * 5, key=1, bias=3)[1]


@pytest.mark.parametrize("name", TABLE_OPTIMIZERS)
def test_strong_l1_makes_exact_zeros(name: str) -> None:
    config = OptimizerConfig(name=name, learning_rate=0.1, l1=50.0)
    assert learn(config, [0.5, -0.5, 0.25], key=1, bias=3)[1] == 0


def test_sgd_rate_decays_by_rows() -> None:
    config = OptimizerConfig(name="sgd", learning_rate=1.0, decay_rows=1000, decay_power=0.5)
    rates = [float(rule_at(config, rows).rate) for rows in (0, 1000, 3000)]
    assert rates == pytest.approx([1.0, 2**-0.5, 0.5])


@pytest.mark.parametrize(("name", "momentum"), [*((name, 0.0) for name in OPTIMIZERS), ("sgd", 0.9)])
def test_an_update_is_the_same_in_tables_and_in_dense_arrays(name: str, momentum: float) -> None:
    """One formula serves both: the states differ only in where they lie."""
    settings = OptimizerConfig(name=name, learning_rate=0.1, l2=0.01, own={"momentum": momentum} if momentum else {})
    layout = TableLayout(5, (Group("weight", 3, settings),), bias=False)
    width = 1 + updates_of(settings).memory
    table, dense = np.zeros((5, width, 3), np.float32), np.zeros((width, 15), np.float32)
    chance = np.random.default_rng(2)
    for _ in range(4):
        sums = chance.standard_normal(15).astype(np.float32)
        apply_gradient(*layout.rules_at(0), table.ravel(), -1, np.arange(5, dtype=np.uint32), sums, 1)
        update_range(rule_at(settings, 0), dense.ravel(), 15, 0, sums, 15, np.float32(1))
    np.testing.assert_array_equal(table.transpose(1, 0, 2).reshape(width, 15), dense)
