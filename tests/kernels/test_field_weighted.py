"""The loops of field-weighted factorization machines against pairs in float64: scores and gradients."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.kernels import field_weighted as kernels
from paceline.kernels.vectors import lanes
from paceline.models.losses import Logistic
from tests.kernels.machines import DIM, FEATURES, FIELDS, layout, number, score, slopes, some_rows, total_loss

WIDTH = 1 + DIM
KERNEL = kernels.FieldWeighted.make(Logistic(), lanes(DIM), FIELDS)


def test_scores_are_those_of_all_pairs() -> None:
    random, rows = np.random.default_rng(1), some_rows(40)
    assert rows.fields is not None
    values = random.normal(0, 0.5, (FEATURES + 1, WIDTH)).astype(np.float32)
    field_weights = random.normal(size=(FIELDS, FIELDS)).astype(np.float32)
    out = np.zeros(rows.num_rows, np.float32)
    kernels.score(
        KERNEL, rows.offsets, rows.keys, rows.values, rows.fields, values.ravel(), values[FEATURES, 0],
        field_weights.ravel(), out,
    )  # fmt: skip
    expected = score("fwfm", values.astype(np.float64), field_weights.astype(np.float64), rows)
    np.testing.assert_allclose(out, expected, atol=1e-4)


def test_gradient_by_finite_differences() -> None:
    random, rows, table = np.random.default_rng(2), some_rows(25), layout(DIM)
    assert rows.fields is not None
    values = random.normal(0, 0.5, (FEATURES + 1, WIDTH)).astype(np.float32)
    field_weights = random.normal(size=(FIELDS, FIELDS)).astype(np.float32)
    distinct, local = number(rows, table)
    weights = values[distinct].ravel()
    sums, field_sums = np.full_like(weights, 7), np.full(FIELDS * FIELDS, 7, np.float32)
    losses = kernels.gradient(
        KERNEL, rows.offsets, local, rows.values, rows.labels, rows.weights, rows.fields, weights,
        field_weights.ravel(), sums, field_sums,
    )  # fmt: skip
    doubles = values.astype(np.float64), field_weights.astype(np.float64)
    expected, of_fields = slopes("fwfm", *doubles, rows)
    np.testing.assert_allclose(sums.reshape(-1, WIDTH), expected[distinct], atol=2e-3)
    np.testing.assert_allclose(field_sums.reshape(FIELDS, FIELDS), of_fields, atol=2e-3)
    assert np.all(of_fields[np.triu_indices(FIELDS)] != 0)
    assert losses == pytest.approx(total_loss("fwfm", *doubles, rows), rel=1e-4)
