"""Linear estimators as a user of scikit-learn meets them."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.metrics import mean_pinball_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import paceline
from paceline.sklearn import PacelineClassifier, PacelineRegressor

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 5))
Z = X @ [2.0, -1, 0.5, 0, 0]
Y = np.where(Z + RNG.normal(size=400) > 0, "yes", "no")


def test_columns_of_any_size_are_learned() -> None:
    income = RNG.normal(50_000, 10_000, 400)
    rows = np.column_stack([income, X[:, 0] * 1e-4])
    y = income + 1e8 * rows[:, 1] > 50_000
    classifier = PacelineClassifier(random_state=0).fit(rows, y)
    assert classifier.score(rows, y) > 0.97
    np.testing.assert_allclose(classifier.decision_function(rows), rows @ classifier.coef_[0] + classifier.intercept_)


def test_labels_of_any_type_and_probabilities_of_classes() -> None:
    for y in (np.digitize(Z, [-1, 1]), np.array(["low", "mid", "up"])[np.digitize(Z, [-1, 1])]):
        classifier = PacelineClassifier(random_state=0).fit(X, y)
        assert classifier.classes_.tolist() == sorted(set(y))
        assert classifier.score(X, y) > 0.8
        assert classifier.coef_.shape == (3, 5)
        np.testing.assert_allclose(classifier.predict_proba(X).sum(axis=1), 1)
        assert (classifier.classes_[classifier.predict_proba(X).argmax(axis=1)] == classifier.predict(X)).all()


@pytest.mark.parametrize("loss", ["hinge", "squared-hinge"])
def test_support_vector_machines_have_no_probabilities(loss: str) -> None:
    classifier = PacelineClassifier(loss, random_state=0).fit(X, Y)
    assert classifier.score(X, Y) > 0.8
    assert not hasattr(classifier, "predict_proba")
    with pytest.raises(AttributeError, match="predict_proba"):
        classifier.predict_proba(X)
    with pytest.raises(ValueError, match="OneVsRestClassifier"):
        classifier.fit(X, np.digitize(Z, [-1, 1]))


def test_the_losses_of_regressors() -> None:
    targets = 1000 * Z + 5000 + 100 * RNG.standard_exponential(400)
    assert PacelineRegressor(random_state=0).fit(X, targets).score(X, targets) > 0.99
    assert PacelineRegressor("huber", delta=10, random_state=0).fit(X, targets).score(X, targets) > 0.99
    low, high = (PacelineRegressor("quantile", quantile=q, random_state=0).fit(X, targets) for q in (0.1, 0.9))
    assert 0.05 < (targets < low.predict(X)).mean() < 0.2 < 0.8 < (targets < high.predict(X)).mean() < 0.95
    assert mean_pinball_loss(targets, high.predict(X), alpha=0.9) < 50
    counts = PacelineRegressor("poisson", random_state=0).fit(X, RNG.poisson(np.exp(Z / 2)))
    assert np.corrcoef(np.log(counts.predict(X)), Z)[0, 1] > 0.98
    with pytest.raises(ValueError, match="needs labels of at least 0"):
        counts.fit(X, Z)


def test_sparse_rows_are_those_of_arrays() -> None:
    dense = PacelineClassifier(random_state=0).fit(X, Y)
    for form in (scipy.sparse.csr_matrix, scipy.sparse.csc_array, scipy.sparse.coo_matrix):
        sparse = PacelineClassifier(random_state=0).fit(form(X), Y)
        assert sparse.coef_.tolist() == dense.coef_.tolist()
        np.testing.assert_allclose(sparse.predict_proba(form(X)), dense.predict_proba(X))
    wide = scipy.sparse.csr_matrix((X[:, 0], np.full(400, 5_000_000), np.arange(401)), (400, 5_000_001))
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    assert PacelineClassifier(random_state=0).fit(wide, X[:, 0] > 0).coef_.shape == (1, 5_000_001)


def test_a_fit_is_a_run(tmp_path: Any) -> None:
    run = paceline.train(
        data=(X, Y), pace="async", workers=1, batch_size=1, epochs=4, seed=7, run=tmp_path / "run", progress=False
    )
    classifier = PacelineClassifier(epochs=4, random_state=7).fit(X, Y)
    assert classifier.coef_[0].astype(np.float32).tolist() == paceline.load(run.path).weights.tolist()


def test_random_state_repeats_a_fit_on_any_number_of_threads() -> None:
    rows, y = np.tile(X, (60, 1)), np.tile(Y, 60)
    fits = [PacelineClassifier(random_state=s, n_jobs=n).fit(rows, y).coef_ for s, n in ((1, 1), (1, 2), (2, 1))]
    assert (fits[0] == fits[1]).all()
    assert (fits[0] != fits[2]).any()
    free = PacelineClassifier(n_jobs=2).fit(rows, y)
    assert abs(free.score(X, Y) - PacelineClassifier(random_state=1).fit(rows, y).score(X, Y)) < 0.03


def test_weights_of_rows_and_of_classes() -> None:
    heavy = PacelineClassifier(class_weight={"yes": 100, "no": 1}, random_state=0).fit(X, Y)
    assert (heavy.predict(X) == "yes").mean() > 0.75
    weights = np.where(Y == "yes", 100, 1)
    assert (PacelineClassifier(random_state=0).fit(X, Y, weights).coef_ == heavy.coef_).all()
    rare = np.where(Z > 2.5, "yes", "no")
    balanced = PacelineClassifier(class_weight="balanced", epochs=1, random_state=0).fit(X, rare)
    plain = PacelineClassifier(epochs=1, random_state=0).fit(X, rare)
    assert (balanced.predict(X) == "yes").sum() > (plain.predict(X) == "yes").sum()
    with pytest.raises(ValueError, match="negative"):
        heavy.fit(X, Y, -weights)


def test_it_fits_into_scikit_learn() -> None:
    frame = pd.DataFrame({"town": RNG.choice(["Oslo", "Rome", "Bonn"], 400), "year": RNG.choice(["1", "2"], 400)})
    y = (frame.town == "Rome").to_numpy()
    pipeline = make_pipeline(OneHotEncoder(), PacelineClassifier(random_state=0))
    assert pipeline.fit(frame, y).score(frame, y) == 1
    search = GridSearchCV(PacelineClassifier(random_state=0), {"l2": [0.0, 10.0]}, cv=3).fit(X, Y)
    assert search.best_params_ == {"l2": 0.0}
    scaled = make_pipeline(StandardScaler().set_output(transform="pandas"), PacelineClassifier(random_state=0))
    assert cross_val_score(scaled, X, Y, cv=3).min() > 0.75
    assert scaled.fit(pd.DataFrame(X, columns=list("abcde")), Y)[-1].feature_names_in_.tolist() == list("abcde")
    calibrated = CalibratedClassifierCV(PacelineClassifier("hinge", random_state=0), cv=3).fit(X, Y)
    assert calibrated.predict_proba(X).shape == (400, 2)


def test_a_fitted_estimator_can_be_pickled_and_goes_on() -> None:
    classifier = PacelineClassifier(random_state=0).fit(X, Y)
    again = pickle.loads(pickle.dumps(classifier))  # noqa: S301 (scikit-learn's way of keeping estimators)
    assert (again.predict_proba(X) == classifier.predict_proba(X)).all()
    assert (again.partial_fit(X, Y).coef_ == classifier.partial_fit(X, Y).coef_).all()
    assert not hasattr(clone(classifier), "coef_")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": 0}, "'learning_rate' parameter of PacelineClassifier must be a float in the range"),
        ({"optimizer": "adam"}, "'optimizer' parameter"),
        ({"loss": "squared"}, "'loss' parameter"),
        ({"epochs": "many"}, "'epochs' parameter"),
    ],
)
def test_wrong_parameters_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PacelineClassifier(**settings).fit(X, Y)


def test_a_fit_that_diverges_says_what_to_change() -> None:
    with pytest.raises(ValueError, match=r"no longer.* learning rate 1e\+10"):
        PacelineRegressor(optimizer="sgd", learning_rate=1e10).fit(X, Z)
