"""The loops of field-aware factorization machines against pairs in float64: scores, gradients and single rows."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.kernels import field_aware as kernels
from paceline.kernels.gate import UNBOUNDED
from paceline.kernels.private import NoCopies
from paceline.kernels.row_loop import train_rows
from paceline.kernels.steps import GateView
from paceline.kernels.vectors import lanes
from paceline.models.losses import Logistic
from paceline.parameters.keyed import KeyedStore
from paceline.settings import OptimizerConfig
from tests.kernels.machines import DIM, FEATURES, FIELDS, layout, number, score, slopes, some_rows, total_loss

NO_FIELD_WEIGHTS = np.zeros((0, 0))
WIDTH = 1 + FIELDS * DIM
KERNEL = kernels.FieldAware(Logistic(), lanes(DIM), FIELDS, np.zeros(FIELDS * FIELDS * DIM, np.float32))


def random_values(seed: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.random.default_rng(seed).normal(0, 0.5, (FEATURES + 1, WIDTH)).astype(np.float32)


def test_scores_are_those_of_all_pairs() -> None:
    rows, values = some_rows(40), random_values(1)
    assert rows.fields is not None
    out = np.zeros(rows.num_rows, np.float32)
    plain = layout(FIELDS * DIM, blocks=FIELDS).plain_rules()
    kernels.score(
        KERNEL, plain, plain, values.ravel(), FEATURES, rows.offsets, rows.keys, rows.values, rows.fields, out
    )  # fmt: skip
    np.testing.assert_allclose(out, score("ffm", values.astype(np.float64), NO_FIELD_WEIGHTS, rows), atol=1e-4)


def test_gradient_by_finite_differences() -> None:
    table, rows, values = layout(FIELDS * DIM), some_rows(25), random_values(2)
    distinct, local = number(rows, table)
    weights = values[distinct].ravel()
    sums = np.full_like(weights, 7)
    losses = kernels.gradient(
        KERNEL, rows.offsets, local, rows.values, rows.labels, rows.weights, rows.fields, weights, sums
    )
    expected, _ = slopes("ffm", values.astype(np.float64), NO_FIELD_WEIGHTS, rows)
    np.testing.assert_allclose(sums.reshape(-1, WIDTH), expected[distinct], atol=2e-3)
    assert losses == pytest.approx(total_loss("ffm", values.astype(np.float64), NO_FIELD_WEIGHTS, rows), rel=1e-4)


@pytest.mark.parametrize("own", [{}, {"row_wise": 1.0}], ids=["adagrad", "row-wise"])
def test_single_rows_are_batches_of_one(own: dict[str, float]) -> None:
    table, rows = layout(FIELDS * DIM, OptimizerConfig(learning_rate=0.1, l2=0.01, own=own), FIELDS), some_rows(60)
    assert table.width == 1 + FIELDS * DIM + (FIELDS if own else FIELDS * DIM)
    single, batches = KeyedStore(table), KeyedStore(table)
    leads = np.zeros((1, 8), np.int64)
    gate = GateView(np.zeros((1, 8), np.int64), 0, UNBOUNDED, 1, leads)
    private = NoCopies(0, 0, np.zeros(1, np.float32), leads[0].copy(), 1, 1, 0.25, np.zeros(1, np.float32))
    stop, losses = train_rows(KERNEL, single.arrays_at(0), rows, np.arange(60, dtype=np.int32), 0, private, gate)
    assert stop == 60
    total = 0.0
    for row in range(60):
        one = rows.slice(row, row + 1)
        distinct, local = number(one, table)
        weights = np.zeros(len(distinct) * table.dim, np.float32)
        sums = np.zeros_like(weights)
        batches.gather(distinct, weights)
        total += kernels.gradient(
            KERNEL, one.offsets, local, one.values, one.labels, one.weights, one.fields, weights, sums
        )
        batches.apply(distinct, sums, 1, 0)
    np.testing.assert_allclose(single.states, batches.states, atol=2e-5)
    assert losses == pytest.approx(total, rel=1e-5)
