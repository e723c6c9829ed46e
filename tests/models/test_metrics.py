"""Metrics as scikit-learn has them, with and without weights; and the loss of the best constant prediction."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import log_loss, roc_auc_score

from paceline.models.images import cross_entropy
from paceline.models.losses import Logistic, Poisson, Squared, best_score, predictions, total_loss
from paceline.models.metrics import ClassSums, CountSums, LossFunctions, NumberSums, Quality, TwoClassSums

ROWS = st.lists(st.tuples(st.integers(0, 1), st.integers(-8, 8), st.integers(0, 3)), min_size=2, max_size=60)


def functions_of(loss: Any) -> LossFunctions:
    return LossFunctions(partial(total_loss, loss), partial(predictions, loss), partial(best_score, loss))


def added(sums: Any, scores: NDArray[Any], labels: NDArray[Any], weights: NDArray[Any] | None = None) -> Quality:
    """In two parts, as blocks come."""
    for part in (slice(None, 1), slice(1, None)):
        sums.add(scores[part], labels[part], None if weights is None else weights[part])
    quality: Quality = sums.quality()
    return quality


@given(rows=ROWS)
@settings(max_examples=100, deadline=None)
def test_quality_with_many_ties(rows: list[tuple[int, int, int]]) -> None:
    labels = np.array([label for label, _, _ in rows], np.uint8)
    scores = np.array([score / 2 for _, score, _ in rows], np.float32)
    given_weights = np.array([weight for _, _, weight in rows], np.float32)
    chances = 1 / (1 + np.exp(-scores.astype(float)))
    for weights in (None, given_weights) if given_weights.sum() else (None,):
        got = added(TwoClassSums(functions_of(Logistic())), scores, labels, weights)
        assert got["loss"] == pytest.approx(log_loss(labels, chances, labels=[0, 1], sample_weight=weights))
        assert got["error"] == pytest.approx(np.average((scores > 0) != labels, weights=weights))
        share = np.average(labels, weights=weights)
        base = log_loss(labels, np.full(len(labels), share), labels=[0, 1], sample_weight=weights)
        assert got["baseline_loss"] == pytest.approx(base, abs=1e-6)
        if 0 < share < 1:
            assert got["auc"] == pytest.approx(roc_auc_score(labels, scores, sample_weight=weights))
        else:
            assert math.isnan(got["auc"])


@pytest.mark.parametrize("weighted", [False, True])
def test_classes(weighted: bool) -> None:
    rng = np.random.default_rng(4)
    scores, labels = rng.normal(size=(80, 5)).astype(np.float32), rng.integers(0, 4, 80).astype(np.uint16)
    scores[:, 4] -= 9  # a class that neither labels nor predictions have
    weights = rng.integers(0, 3, 80).astype(np.float32) if weighted else None
    got, found = added(ClassSums(cross_entropy), scores, labels, weights), scores.argmax(axis=1)
    shares = np.bincount(labels, weights) / (80 if weights is None else weights.sum())
    assert got == pytest.approx({
        "loss": log_loss(labels, np.exp(scores) / np.exp(scores).sum(1, keepdims=True), labels=range(5),
                         sample_weight=weights),
        "baseline_loss": -(shares * np.log(shares)).sum(),
        "error": 1 - sklearn.metrics.accuracy_score(labels, found, sample_weight=weights),
        "macro_f1": sklearn.metrics.f1_score(labels, found, average="macro", sample_weight=weights),
        "accuracy": sklearn.metrics.accuracy_score(labels, found, sample_weight=weights),
    }, rel=1e-5)  # fmt: skip


@pytest.mark.parametrize("weighted", [False, True])
def test_numbers_and_counts(weighted: bool) -> None:
    rng = np.random.default_rng(5)
    scores, labels = rng.normal(size=60).astype(np.float32), rng.poisson(2, 60).astype(np.float32)
    weights = rng.integers(0, 3, 60).astype(np.float32) if weighted else None
    got = added(NumberSums(functions_of(Squared())), scores, labels, weights)
    mean = np.average(labels, weights=weights)
    assert got == pytest.approx({
        "loss": sklearn.metrics.mean_squared_error(labels, scores, sample_weight=weights) / 2,
        "baseline_loss": np.average((labels - mean) ** 2, weights=weights) / 2,
        "mae": sklearn.metrics.mean_absolute_error(labels, scores, sample_weight=weights),
        "r2": sklearn.metrics.r2_score(labels, scores, sample_weight=weights),
        "rmse": sklearn.metrics.mean_squared_error(labels, scores, sample_weight=weights) ** 0.5,
    }, rel=1e-5)  # fmt: skip
    counted = added(CountSums(functions_of(Poisson())), scores, labels, weights)
    deviance = sklearn.metrics.mean_poisson_deviance(labels, np.exp(scores), sample_weight=weights)
    assert counted["deviance"] == pytest.approx(deviance, rel=1e-5)
    assert counted["baseline_loss"] == pytest.approx(mean - mean * np.log(mean), rel=1e-5)


def test_rows_without_any_weight_have_no_quality() -> None:
    scores, labels, nothing = np.ones(2, np.float32), np.array([0, 1], np.uint8), np.zeros(2, np.float32)
    for sums in (TwoClassSums(functions_of(Logistic())), NumberSums(functions_of(Squared()))):
        assert all(math.isnan(value) for value in added(sums, scores, labels, nothing).values())
