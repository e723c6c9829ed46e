"""Tables of parameters against plain NumPy: rows of several groups, the bias, and values drawn by key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.kernels.tables import (
    KEYS_AHEAD,
    ColumnGroup,
    KeysOfRows,
    Several,
    Single,
    apply_gradient,
    fill_normal,
    fill_uniform,
    gather,
    read_all,
    row_dim,
    row_width,
)
from paceline.parameters.optimizers import rule_at
from paceline.settings import OptimizerConfig

FEATURES = 100
BIAS = FEATURES
NOT_MOVED = np.zeros(0, np.int64), np.zeros(0, np.uint64)


def rule(name: str, rate: float = 0.5, l2: float = 0.0) -> Any:
    return rule_at(OptimizerConfig(name=name, learning_rate=rate, l2=l2), 0)


# Two groups: one column of AdaGrad (a value and a sum), then three of plain descent. A row is v s | v v v.
GROUPS = (ColumnGroup(rule("adagrad", l2=0.1), Single()), ColumnGroup(rule("sgd", l2=0.1), Several(3)))
BIAS_GROUPS = (ColumnGroup(rule("adagrad"), Single()), ColumnGroup(rule("sgd"), Several(3)))
WIDTH, DIM, VALUES = 5, 4, [0, 2, 3, 4]


def make_table(seed: int) -> np.ndarray:
    table = np.random.default_rng(seed).standard_normal((FEATURES + 1, WIDTH)).astype(np.float32)
    table[:, 1] = np.abs(table[:, 1])
    return table


def test_a_row_has_the_values_and_what_is_remembered_of_them() -> None:
    assert (row_width(GROUPS), row_dim(GROUPS)) == (WIDTH, DIM)
    assert (row_width(rule("sgd")), row_dim(rule("sgd"))) == (1, 1)
    assert (row_width(rule("adagrad")), row_dim(rule("adagrad"))) == (2, 1)


keys_of_tables = st.lists(st.integers(0, BIAS), unique=True, max_size=FEATURES)


@given(keys_of_tables, st.sampled_from([np.uint32, np.uint64]))
@settings(max_examples=50)
def test_gathering_reads_the_values_of_the_keys(keys: list[int], dtype: type) -> None:
    """Of more keys than are loaded ahead, too."""
    table = make_table(1)
    out = np.full((len(keys), DIM), np.nan, np.float32)
    gather(GROUPS, BIAS_GROUPS, table.reshape(-1), BIAS, np.array(keys, dtype), out.reshape(-1))
    assert np.array_equal(out, table[keys][:, VALUES])


@given(keys_of_tables, st.integers(1, 1000))
@settings(max_examples=50)
def test_a_gradient_changes_its_keys_alone_and_does_not_regularise_the_bias(keys: list[int], num_rows: int) -> None:
    before = make_table(2)
    sums = np.random.default_rng(3).standard_normal((len(keys), DIM)).astype(np.float32)
    table = before.copy()
    flat = table.reshape(-1)
    apply_gradient(GROUPS, BIAS_GROUPS, flat, BIAS, np.array(keys, np.uint32), sums.reshape(-1), num_rows)

    expected = before.astype(np.float64)
    for key, given_sums in zip(keys, sums, strict=True):
        row, l2 = expected[key], 0.0 if key == BIAS else 0.1
        g = given_sums / num_rows + l2 * row[VALUES]
        row[1] += g[0] ** 2
        row[0] -= 0.5 / (np.sqrt(row[1]) + 1e-6) * g[0]
        row[2:] -= 0.5 * g[1:]
    np.testing.assert_allclose(table, expected, rtol=1e-5, atol=1e-5)
    others = np.setdiff1d(np.arange(BIAS + 1), keys)
    assert np.array_equal(table[others], before[others])


def test_one_column_given_by_its_rule_is_the_same_as_a_group_of_one() -> None:
    keys = np.arange(BIAS + 1, dtype=np.uint32)[::-1].copy()
    assert len(keys) > 2 * KEYS_AHEAD
    sums = np.random.default_rng(4).standard_normal(len(keys)).astype(np.float32)
    tables = []
    for groups in (rule("adagrad", l2=0.1), (ColumnGroup(rule("adagrad", l2=0.1), Several(1)),)):
        table = make_table(5)[:, :2].copy().reshape(-1)
        apply_gradient(groups, groups, table, BIAS, keys, sums, 7)
        out = np.empty(len(keys), np.float32)
        gather(groups, groups, table, BIAS, keys, out)
        tables.append((table.tobytes(), out.tobytes()))
    assert tables[0] == tables[1]


@pytest.mark.parametrize("rows", [0, 30, FEATURES, FEATURES + 1])
@pytest.mark.parametrize("bias", [BIAS, -1])
def test_all_values_of_the_first_rows(rows: int, bias: int) -> None:
    table = make_table(6)
    out = np.full((rows, DIM), np.nan, np.float32)
    read_all(GROUPS, BIAS_GROUPS, table.reshape(-1), bias, out.reshape(-1))
    assert np.array_equal(out, table[:rows][:, VALUES])


def test_the_bias_is_read_by_its_own_rule() -> None:
    """FTRL computes a value from its state and its rate; a bias may have another one."""
    table = np.tile(np.array([3.0, 4.0], np.float32), 3)
    ftrl, slower = rule("ftrl"), rule("ftrl", rate=0.25)
    found = np.empty(3, np.float32)
    read_all(ftrl, slower, table, 2, found)
    gathered = np.empty(3, np.float32)
    gather(ftrl, slower, table, 2, np.arange(3, dtype=np.uint32), gathered)
    assert found[0] == found[1] != found[2]
    assert np.array_equal(found, gathered)


@pytest.mark.parametrize("fill", [fill_uniform, fill_normal])
@pytest.mark.parametrize("num_shards", [1, 2, 3])
def test_what_a_key_begins_with_does_not_depend_on_its_shard(fill: Any, num_shards: int) -> None:
    def filled(first: int, step: int, count: int) -> np.ndarray:
        table = np.zeros((count, WIDTH), np.float32)
        fill(table.reshape(-1), WIDTH, 2, 3, KeysOfRows(first, step, *NOT_MOVED), 9, np.float32(0.1))
        return table

    whole = filled(0, 1, 60)
    assert not whole[:, :2].any()
    assert len(np.unique(whole[:, 2:])) == 180
    for shard in range(num_shards):
        assert np.array_equal(filled(shard, num_shards, 60 // num_shards), whole[shard::num_shards])


@pytest.mark.parametrize("fill", [fill_uniform, fill_normal])
def test_a_row_begins_with_the_values_of_the_key_that_it_is_for(fill: Any) -> None:
    def filled(count: int, of: KeysOfRows) -> np.ndarray:
        table = np.zeros((count, WIDTH), np.float32)
        fill(table.reshape(-1), WIDTH, 2, 3, of, 9, np.float32(0.1))
        return table

    whole = filled(200, KeysOfRows(0, 1, *NOT_MOVED))
    rows, keys = np.array([0, 4, 9]), np.array([150, 4, 7], np.uint64)
    expected = np.arange(1, 31, 3)
    expected[rows] = keys
    assert np.array_equal(filled(10, KeysOfRows(1, 3, rows, keys)), whole[expected])


def test_values_are_drawn_from_the_distributions_they_are_named_after() -> None:
    uniform, normal = np.zeros(40_000, np.float32), np.zeros(40_000, np.float32)
    of = KeysOfRows(0, 1, *NOT_MOVED)
    fill_uniform(uniform, 1, 0, 1, of, 3, np.float32(0.5))
    fill_normal(normal, 1, 0, 1, of, 3, np.float32(0.5))
    assert -0.5 <= uniform.min() < -0.499
    assert 0.499 < uniform.max() <= 0.5
    assert abs(uniform.mean()) < 0.01
    assert uniform.std() == pytest.approx(0.5 / np.sqrt(3), rel=0.02)
    assert abs(normal.mean()) < 0.01
    assert normal.std() == pytest.approx(0.5, rel=0.02)
    assert (np.abs(normal) < 0.5).mean() == pytest.approx(0.683, abs=0.01)
    other = np.zeros(40_000, np.float32)
    fill_uniform(other, 1, 0, 1, of, 4, np.float32(0.5))
    assert abs(np.corrcoef(uniform, other)[0, 1]) < 0.02
