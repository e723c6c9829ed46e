"""The loops of factorization machines against pairs in float64: scores, gradients and single rows."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.kernels import factorization as kernels
from paceline.kernels.gate import UNBOUNDED
from paceline.kernels.private import NoCopies
from paceline.kernels.row_loop import train_rows
from paceline.kernels.steps import GateView
from paceline.kernels.vectors import lanes
from paceline.models.losses import Logistic
from paceline.parameters.keyed import KeyedStore
from paceline.settings import OptimizerConfig
from tests.kernels.machines import DIM, FEATURES, layout, number, score, slopes, some_rows, total_loss

NO_FIELD_WEIGHTS = np.zeros((0, 0))
KERNEL = kernels.FactorizationMachine(Logistic(), lanes(DIM))


def test_scores_are_those_of_all_pairs() -> None:
    table, rows = layout(DIM), some_rows(40)
    values = np.random.default_rng(1).normal(size=(FEATURES + 1, 1 + DIM)).astype(np.float32)
    out = np.zeros(rows.num_rows, np.float32)
    plain = table.plain_rules()
    kernels.score(KERNEL, plain, plain, values.ravel(), FEATURES, rows.offsets, rows.keys, rows.values, out)
    np.testing.assert_allclose(out, score("fm", values.astype(np.float64), NO_FIELD_WEIGHTS, rows), atol=1e-4)


def test_keys_that_were_never_trained_count_nothing() -> None:
    rows = some_rows(10)
    values = np.random.default_rng(1).normal(size=(FEATURES + 1, 1 + DIM)).astype(np.float32)
    known, unknown = np.zeros(10, np.float32), np.zeros(10, np.float32)
    plain = layout(DIM).plain_rules()
    keys = rows.keys.copy()
    values[keys[0]] = 0
    kernels.score(KERNEL, plain, plain, values.ravel(), FEATURES, rows.offsets, keys, rows.values, known)
    keys[keys == keys[0]] = FEATURES + 5
    kernels.score(KERNEL, plain, plain, values.ravel(), FEATURES, rows.offsets, keys, rows.values, unknown)
    np.testing.assert_array_equal(known, unknown)


def test_gradient_by_finite_differences() -> None:
    table, rows = layout(DIM), some_rows(25)
    distinct, local = number(rows, table)
    values = np.random.default_rng(2).normal(0, 0.5, (FEATURES + 1, 1 + DIM)).astype(np.float32)
    weights = values[distinct].ravel()
    sums = np.full_like(weights, 7)
    losses = kernels.gradient(
        KERNEL, rows.offsets, local, rows.values, rows.labels, rows.weights, None, weights, sums
    )  # fmt: skip
    expected, _ = slopes("fm", values.astype(np.float64), NO_FIELD_WEIGHTS, rows)
    expected[FEATURES, 1:] = 0
    np.testing.assert_allclose(sums.reshape(-1, 1 + DIM), expected[distinct], atol=2e-3)
    assert losses == pytest.approx(total_loss("fm", values.astype(np.float64), NO_FIELD_WEIGHTS, rows), rel=1e-4)


@pytest.mark.parametrize(
    "settings",
    [
        OptimizerConfig(name="sgd", learning_rate=0.1, l2=0.01), OptimizerConfig(learning_rate=0.1, l2=0.01),
        OptimizerConfig(learning_rate=0.1, l2=0.01, own={"row_wise": 1.0}),
    ],
    ids=["sgd", "adagrad", "row-wise"],
)  # fmt: skip
def test_single_rows_are_batches_of_one(settings: OptimizerConfig) -> None:
    table, rows = layout(DIM, settings), some_rows(60)
    single, batches = KeyedStore(table), KeyedStore(table)
    assert np.ptp(single.states[:-1, 1]) > 0
    leads = np.zeros((1, 8), np.int64)
    gate = GateView(np.zeros((1, 8), np.int64), 0, UNBOUNDED, 1, leads)
    private = NoCopies(0, 0, np.zeros(1, np.float32), leads[0].copy(), 1, 1, 0.25, np.zeros(1, np.float32))
    order = np.arange(60, dtype=np.int32)[::-1].copy()
    stop, losses = train_rows(KERNEL, single.arrays_at(0), rows, order, 0, private, gate)
    assert stop == 60
    total = 0.0
    for row in order:
        one = rows.slice(row, row + 1)
        distinct, local = number(one, table)
        weights = np.zeros(len(distinct) * table.dim, np.float32)
        sums = np.zeros_like(weights)
        batches.gather(distinct, weights)
        total += kernels.gradient(
            KERNEL, one.offsets, local, one.values, one.labels, one.weights, None, weights, sums
        )  # fmt: skip
        batches.apply(distinct, sums, 1, 0)
    np.testing.assert_allclose(single.states, batches.states, atol=2e-5)
    assert losses == pytest.approx(total, rel=1e-5)
