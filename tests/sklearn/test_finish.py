"""The finish: the optimum that scikit-learn's solvers find."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import HuberRegressor, LogisticRegression, PoissonRegressor, Ridge
from sklearn.svm import LinearSVC

from paceline.sklearn import PacelineClassifier, PacelineRegressor, finish

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 5))
Z = X @ [1, -1, 0.5, 0, 0] + RNG.normal(size=300)
WEIGHTS = RNG.random(300)
ROWS, L2 = 300, 0.01


@pytest.mark.parametrize("classes", [2, 3])
def test_logistic_regression(classes: int) -> None:
    y = np.digitize(Z, [0] if classes == 2 else [-1, 1])
    ours = PacelineClassifier(finish="optimum", l2=L2).fit(X, y, WEIGHTS)
    theirs = LogisticRegression(C=1 / (L2 * WEIGHTS.sum()), solver="newton-cg", tol=1e-10).fit(X, y, WEIGHTS)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-5)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)


def test_least_squares_of_unscaled_columns_and_targets() -> None:
    big, targets = X * 1000 + 50_000, 1e6 * Z + 1e7
    ours = PacelineRegressor(finish="optimum").fit(big, targets)
    expected = Ridge(alpha=0).fit(X, targets).predict(X)
    np.testing.assert_allclose(ours.predict(big), expected, rtol=1e-6)


def test_poisson_regression() -> None:
    y = RNG.poisson(np.exp(Z / 3))
    ours = PacelineRegressor("poisson", finish="optimum", l2=L2).fit(X, y)
    theirs = PoissonRegressor(alpha=L2, solver="newton-cholesky", tol=1e-10).fit(X, y)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=1e-5)


def test_a_support_vector_machine_with_squared_hinge() -> None:
    y = np.where(Z > 0, "yes", "no")
    ours = PacelineClassifier("squared-hinge", finish="optimum", l2=L2).fit(X, y)
    # LinearSVC regularises its bias, but hardly with a large `intercept_scaling`.
    theirs = LinearSVC(C=1 / (L2 * ROWS), intercept_scaling=1e4, tol=1e-12, max_iter=100_000, dual=False).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-4)


def test_huber_regression_is_not_moved_by_outliers() -> None:
    line = X @ [1, -1, 0.5, 0, 0]
    y = line + 0.01 * Z
    y[:20] += 1000
    ours = PacelineRegressor("huber", delta=0.1, finish="optimum", l2=1e-6).fit(X, y)
    assert np.abs(ours.coef_ - HuberRegressor(alpha=1e-6).fit(X, y).coef_).max() < 0.01
    assert np.median(np.abs(ours.predict(X) - line)) < 0.05


def test_it_does_not_depend_on_where_training_ended() -> None:
    y = (Z > 0).astype(int)
    fits = [
        PacelineClassifier(finish="optimum", l2=L2, random_state=seed, epochs=epochs).fit(rows, y).coef_
        for seed, epochs, rows in ((0, 1, X), (1, 30, X), (2, 1, scipy.sparse.csr_matrix(X)))
    ]
    np.testing.assert_allclose(fits[1:], [fits[0]] * 2, rtol=1e-8)


def test_partial_fit_goes_on_from_the_optimum() -> None:
    y = (Z > 0).astype(int)
    estimator = PacelineClassifier(finish="optimum", l2=L2, learning_rate=1e-6).fit(X, y)
    before = estimator.coef_
    np.testing.assert_allclose(estimator.partial_fit(X, y).coef_, before, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "hinge"}, "needs a smooth loss"),
        ({"l1": 0.1}, "needs l1=0"),
        ({"optimizer": "ftrl"}, "cannot go on from optimizer='ftrl'"),
        ({"finish": "best"}, "'finish' parameter"),
    ],
)
def test_what_cannot_be_finished_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PacelineClassifier(**{"finish": "optimum", **settings}).fit(X, Z > 0)


def test_if_the_optimum_is_not_reached_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finish, "MOST_STEPS", 1)
    with pytest.warns(ConvergenceWarning, match="larger l2"):
        PacelineClassifier(finish="optimum", epochs=1).fit(X, Z > 0)
