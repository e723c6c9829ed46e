"""The loops of models with one score per class, against float64 NumPy and finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.data.sparse.batch import Batch
from paceline.kernels.multinomial import Multinomial, gradient, score
from paceline.kernels.private import NoCopies
from paceline.kernels.row_loop import train_rows
from paceline.kernels.steps import GateView
from paceline.kernels.tables import TableArrays
from paceline.parameters.layout import Group, TableLayout
from paceline.settings import OptimizerConfig

FEATURES, CLASSES, RATE = 30, 5, 0.5
LAYOUT = TableLayout(FEATURES, (Group("weight", CLASSES, OptimizerConfig(name="sgd", learning_rate=RATE)),))
RULES = LAYOUT.rules_at(0)


def random_rows(weighted: bool) -> Batch:
    rng = np.random.default_rng(3)
    keys = [rng.choice(FEATURES, rng.integers(0, 7), replace=False) for _ in range(60)]
    values = [rng.normal(size=len(k)).tolist() for k in keys]
    rows = Batch.from_lists([0] * 60, [k.tolist() for k in keys], values)
    weights = rng.integers(0, 3, 60).astype(np.float32) if weighted else None
    return rows._replace(labels=rng.integers(0, CLASSES, 60).astype(np.uint16), weights=weights)


def dense(rows: Batch) -> np.ndarray[Any, Any]:
    """The rows as a float64 matrix, the bias as its last column."""
    matrix = np.zeros((rows.num_rows, FEATURES + 1))
    matrix[np.repeat(np.arange(rows.num_rows), np.diff(rows.offsets)), rows.keys] = rows.values
    matrix[:, -1] = 1
    return matrix


def losses_of(table: np.ndarray[Any, Any], rows: Batch, classes: Any) -> np.ndarray[Any, Any]:
    """log Σ exp(z_c) − z_y of each row, times its weight and that of its class."""
    z = dense(rows) @ table
    losses = np.log(np.exp(z).sum(axis=1)) - z[np.arange(rows.num_rows), rows.labels]
    counts = np.ones(rows.num_rows) if rows.weights is None else rows.weights
    found: np.ndarray[Any, Any] = losses * counts * (1 if classes is None else classes[rows.labels])
    return found


@pytest.mark.parametrize("weighted", [False, True])
def test_gradient_by_finite_differences(weighted: bool) -> None:
    rng = np.random.default_rng(1)
    rows, table = random_rows(weighted), rng.normal(size=(FEATURES + 1, CLASSES))
    classes = rng.random(CLASSES).astype(np.float32) if weighted else None
    # The bias is number 0 of a batch, and key k is number k + 1.
    weights = np.roll(table, 1, axis=0).astype(np.float32).reshape(-1)
    out = np.empty_like(weights)
    model = Multinomial(np.zeros(CLASSES, np.float32), classes)
    losses = gradient(
        model, rows.offsets, rows.keys + np.uint32(1), rows.values, rows.labels, rows.weights, None, weights, out
    )
    assert losses == pytest.approx(losses_of(table, rows, classes).sum(), rel=1e-5)
    sums = np.roll(out.reshape(-1, CLASSES), -1, axis=0)
    for key in (0, 7, 19, FEATURES):
        for column in range(CLASSES):
            step = np.zeros_like(table)
            step[key, column] = 1e-5
            above, below = (losses_of(table + sign * step, rows, classes).sum() for sign in (1, -1))
            assert sums[key, column] == pytest.approx((above - below) / 2e-5, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("weighted", [False, True])
def test_single_rows_are_gradient_descent(weighted: bool) -> None:
    rows, x = random_rows(weighted), dense(random_rows(weighted))
    table, expected = np.zeros((FEATURES + 1) * CLASSES, np.float32), np.zeros((FEATURES + 1, CLASSES))
    gate = GateView(np.zeros((1, 8), np.int64), 0, 1 << 60, 10, np.zeros((1, 8), np.int64))
    nothing = NoCopies(0, 0, table, np.zeros(8, np.int64), 1, 1, 0.25, np.ones(1, np.float32))
    model = Multinomial(np.zeros(CLASSES, np.float32), None)
    order = np.arange(rows.num_rows, dtype=np.int32)
    done, losses = train_rows(model, TableArrays(*RULES, table, FEATURES), rows, order, 0, nothing, gate)
    total = 0.0
    for row in range(rows.num_rows):
        total += losses_of(expected, rows.slice(row, row + 1), None)[0]
        z = x[row] @ expected
        slopes = np.exp(z) / np.exp(z).sum()
        slopes[rows.labels[row]] -= 1
        counts = 1 if rows.weights is None else rows.weights[row]
        expected -= RATE * counts * np.outer(x[row], slopes)
    assert done == rows.num_rows
    assert table.reshape(-1, CLASSES) == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert losses == pytest.approx(total, rel=1e-4)


def test_scores_leave_unknown_keys_out() -> None:
    rows = Batch.from_lists([0, 0], [[1, 40], []], [[2.0, 100.0], []])
    table = np.random.default_rng(2).normal(size=(FEATURES + 1, CLASSES)).astype(np.float32)
    out = np.zeros((2, CLASSES), np.float32)
    score(*RULES, table.reshape(-1), FEATURES, FEATURES, rows.offsets, rows.keys, rows.values, out)
    assert out == pytest.approx(np.array([table[-1] + 2 * table[1], table[-1]]), rel=1e-5)
