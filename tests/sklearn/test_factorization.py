"""Factorization machines as estimators: they learn what pairs of features tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import paceline
from paceline.sklearn import FMClassifier, FMRegressor, PacelineClassifier

RNG = np.random.default_rng(0)
SIGNS = RNG.choice([-1.0, 1.0], size=(600, 5))
SAME = np.where(SIGNS[:, 0] == SIGNS[:, 1], "same", "different")


def test_pairs_are_learned_that_a_linear_model_cannot_see() -> None:
    assert PacelineClassifier(random_state=0).fit(SIGNS, SAME).score(SIGNS, SAME) < 0.6
    machine = FMClassifier(dim=4, random_state=0).fit(SIGNS, SAME)
    assert machine.score(SIGNS, SAME) == 1
    assert machine.factors_.shape == (5, 4)
    sparse = scipy.sparse.csr_matrix(SIGNS)
    np.testing.assert_allclose(machine.predict_proba(sparse), machine.predict_proba(SIGNS))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_columns_of_any_size_may_be_multiplied(dtype: Any) -> None:
    area: Any = np.column_stack([RNG.normal(5000, 1000, 600), RNG.normal(200, 50, 600)]).astype(dtype)
    regressor = FMRegressor(random_state=0).fit(area, area[:, 0] * area[:, 1])
    assert regressor.score(area, area[:, 0] * area[:, 1]) > 0.99


def test_float32_columns_far_from_0_are_scored_like_float64() -> None:
    far = np.column_stack([RNG.normal(1e5, 1, 600), RNG.normal(0, 1, 600)]).astype(np.float32)
    machine = FMClassifier(random_state=0).fit(far, far[:, 0] > 1e5)
    np.testing.assert_array_equal(machine.decision_function(far), machine.decision_function(far.astype(np.float64)))


def test_predictions_are_those_of_a_run(tmp_path: Path) -> None:
    rows = SIGNS * [1, 1, 100, 1, 1]
    run = paceline.train(
        data=(rows, SAME), model="fm", pace="async", workers=1, batch_size=1, epochs=3, seed=2, dim=4,
        run=tmp_path / "run", progress=False,
    )  # fmt: skip
    machine = FMClassifier(dim=4, epochs=3, random_state=2).fit(rows, SAME)
    theirs = np.asarray(paceline.load(run.path).predict_proba(scipy.sparse.csr_matrix(rows))).reshape(600, -1)[:, -1]
    np.testing.assert_allclose(machine.predict_proba(rows)[:, 1], theirs, rtol=1e-4)


def test_more_than_two_classes_need_several_machines() -> None:
    with pytest.raises(ValueError, match="OneVsRestClassifier"):
        FMClassifier().fit(SIGNS, SIGNS[:, 0] + SIGNS[:, 1])


def test_more_factors_than_there_can_be_are_refused() -> None:
    with pytest.raises(ValueError, match="dim"):
        FMClassifier(dim=1_000_000).fit(SIGNS, SAME)
