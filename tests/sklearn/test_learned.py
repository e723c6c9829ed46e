"""Weights and factors for values as the source has them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from paceline.data.sparse.scaling import Scaling
from paceline.sklearn import learned
from paceline.sklearn.learned import of_fm, of_linear

RNG = np.random.default_rng(0)
SCALING = Scaling((1, 3), (4.0, 0.25), (40.0, 0.0))
X = RNG.normal(size=(20, 4)) * [1, 4, 1, 0.25] + [0, 40, 0, 0]
SCALED = (X - [0, 40, 0, 0]) / [1, 4, 1, 0.25]


@pytest.mark.parametrize("keys", [2, 5])
def test_tables_are_read_in_parts(keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    table = RNG.normal(size=(5, 4)).astype(np.float32)
    whole = [*of_linear(table, SCALING)[:2], *of_fm(table, SCALING)]
    monkeypatch.setattr(learned, "PART_KEYS", keys)
    for ours, theirs in zip([*of_linear(table, SCALING)[:2], *of_fm(table, SCALING)], whole, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_linear_model_scores_values_of_the_source(outputs: int) -> None:
    table = RNG.normal(size=(5, outputs)).astype(np.float32)
    found = of_linear(table, SCALING)
    assert found.weights.shape == (outputs, 4)
    np.testing.assert_allclose(found.scores(X), SCALED @ table[:-1] + table[-1], rtol=1e-6)


@pytest.mark.parametrize("form", [np.asarray, scipy.sparse.csr_matrix, scipy.sparse.csr_array])
def test_a_factorization_machine_scores_values_of_the_source(form: type) -> None:
    table = RNG.normal(size=(5, 4)).astype(np.float32)
    table[-1, 1:] = 0
    pairs = [sum(row[i] * row[j] * (table[i, 1:] @ table[j, 1:]) for i in range(4) for j in range(i)) for row in SCALED]
    expected = SCALED @ table[:-1, 0] + table[-1, 0] + pairs
    np.testing.assert_allclose(of_fm(table, SCALING).scores(form(X))[:, 0], expected, rtol=1e-5, atol=1e-5)
