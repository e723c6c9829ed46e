"""The finish: the optimum that scikit-learn's solvers find."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import HuberRegressor, LinearRegression, LogisticRegression, PoissonRegressor, Ridge
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


@pytest.mark.parametrize("columns", [5, 400])
def test_least_squares_without_l2_ends_at_the_smallest_of_the_best_weights(columns: int) -> None:
    rows = np.random.default_rng(1).normal(size=(300, columns)) + 1
    ours = PacelineRegressor(finish="optimum").fit(rows, Z + 10)
    theirs = LinearRegression().fit(rows, Z + 10)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-9)
    assert ours.intercept_ == pytest.approx(theirs.intercept_)


def test_without_l2_an_optimum_is_that_of_the_loss_alone() -> None:
    y, size = np.digitize(Z, [-1, 1]), [1, 1000, 1e-3, 1, 1]
    ours = PacelineClassifier(finish="optimum", scale="none", epochs=1, learning_rate=1e-6).fit(X * size, y)
    theirs = LogisticRegression(C=np.inf, solver="newton-cg", tol=1e-10).fit(X, y)
    np.testing.assert_allclose(ours.coef_ * size, theirs.coef_, atol=1e-5)


@pytest.mark.parametrize(
    ("estimator", "targets"),
    [
        (PacelineClassifier(), X[:, 0] > 0),
        (PacelineClassifier(), np.digitize(X[:, 0], [-1, 1])),
        (PacelineClassifier("squared-hinge"), X[:, 0] > 0),
        (PacelineRegressor("poisson"), np.where(X[:, 0] > 0, 3, 0)),
        (PacelineRegressor("poisson"), np.zeros(ROWS)),
        (PacelineRegressor("huber", delta=0.01), np.where(X[:, 0] > 0, 3, 0)),
    ],
    ids=["logistic", "softmax", "squared-hinge", "poisson", "only-zeros", "huber"],
)
def test_where_losses_have_no_single_optimum_it_ends_at_the_same_finite_weights(
    estimator: Any, targets: np.ndarray[Any, Any]
) -> None:
    order = np.random.default_rng(0).permutation(ROWS)
    estimator.set_params(finish="optimum")
    first = estimator.set_params(epochs=1, random_state=0).fit(X, targets).coef_
    again = estimator.set_params(epochs=9, random_state=1).fit(X[order], targets[order]).coef_
    assert np.isfinite(first).all()
    np.testing.assert_allclose(again, first, rtol=1e-6, atol=1e-6)


def test_constant_columns_have_no_weight() -> None:
    rows = np.column_stack([X, np.full(ROWS, 1e9), np.zeros(ROWS)])
    for estimator in (PacelineClassifier(finish="optimum"), PacelineRegressor(finish="optimum")):
        np.testing.assert_allclose(np.ravel(estimator.fit(rows, Z > 0).coef_)[5:], 0, atol=1e-15)


def test_the_first_partial_fit_is_not_finished() -> None:
    y = (Z > 0).astype(int)
    plain, finished = (PacelineClassifier(finish=finish, random_state=0) for finish in (None, "optimum"))
    np.testing.assert_array_equal(finished.partial_fit(X, y, [0, 1]).coef_, plain.partial_fit(X, y, [0, 1]).coef_)


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


def test_values_in_parts_are_their_sum() -> None:
    """A sparse matrix may have a column twice in a row, and it stays as it is."""
    whole = scipy.sparse.csr_matrix(np.where(np.abs(X) > 0.5, X, 0))
    parts = scipy.sparse.csr_matrix(
        (np.repeat(whole.data / 2, 2), np.repeat(whole.indices, 2), 2 * whole.indptr), shape=whole.shape
    )
    ours, expected = (PacelineClassifier(finish="optimum").fit(matrix, X[:, 0] > 0) for matrix in (parts, whole))
    np.testing.assert_allclose(ours.coef_, expected.coef_, rtol=1e-6)
    assert parts.nnz == 2 * whole.nnz


@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_targets_and_a_column_far_from_zero(loss: str) -> None:
    far = X + np.array([0, 1e7, 0, 0, 0])
    ours = PacelineRegressor(loss=loss, finish="optimum", random_state=0).fit(far, X @ [1, 2, 3, 0, 0] + 1e8)
    np.testing.assert_allclose(ours.coef_, [1, 2, 3, 0, 0], atol=1e-4)
