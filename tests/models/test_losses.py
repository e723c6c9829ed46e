"""Every loss: its slope is the derivative of its value, its value is the formula in float64, and no constant score is
better than its best one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import sklearn.metrics

import paceline
from paceline.kernels.losses import measure_rows
from paceline.models.loss_entries import LOSSES, LOSSES_OF_ONE_SCORE
from paceline.models.losses import (
    ClassWeighted,
    Logistic,
    Scales,
    best_score,
    predictions,
    rule_of,
    rule_to_train,
    scales_of,
    total_loss,
)
from paceline.settings import LossConfig

TAU, DELTA = 0.3, 1.5
FORMULAS: dict[str, Any] = {
    "logistic": lambda z, y: np.logaddexp(0, -(2 * y - 1) * z),
    "squared": lambda z, y: (z - y) ** 2 / 2,
    "hinge": lambda z, y: np.maximum(0, 1 - (2 * y - 1) * z),
    "squared-hinge": lambda z, y: np.maximum(0, 1 - (2 * y - 1) * z) ** 2,
    "poisson": lambda z, y: np.exp(z) - y * z,
    "quantile": lambda z, y: np.where(y > z, TAU * (y - z), (1 - TAU) * (z - y)),
    "huber": lambda z, y: np.where(abs(z - y) <= DELTA, (z - y) ** 2 / 2, DELTA * (abs(z - y) - DELTA / 2)),
}
LINKS: dict[str, Any] = dict.fromkeys(FORMULAS, lambda z: z) | {
    "logistic": lambda z: 1 / (1 + np.exp(-z)),
    "poisson": np.exp,
}


def rule(name: str) -> Any:
    return rule_of(LossConfig(name=name, quantile=TAU, delta=DELTA))


def labels_for(name: str, count: int) -> Any:
    """Labels as such data has them."""
    rng = np.random.default_rng(1)
    return rng.gamma(2, 3, count).round(2) if LOSSES[name].for_numbers else rng.random(count) < 0.7


def test_every_loss_has_a_formula_here() -> None:
    assert set(FORMULAS) == set(LINKS) == set(LOSSES_OF_ONE_SCORE)


@pytest.mark.parametrize("name", FORMULAS)
class TestEveryLoss:
    def test_value(self, name: str) -> None:
        chance = np.random.default_rng(0)
        scores, labels = chance.normal(0, 4, 500).astype(np.float32), chance.integers(0, 2, 500).astype(np.uint8)
        expected = FORMULAS[name](scores.astype(np.float64), labels.astype(np.float64))
        assert total_loss(rule(name), scores, labels) == pytest.approx(expected.sum(), rel=1e-6)
        weights = chance.integers(0, 3, 500).astype(np.float32)
        assert total_loss(rule(name), scores, labels, weights) == pytest.approx(weights @ expected, rel=1e-6)

    def test_slope(self, name: str) -> None:
        # None of these is where a slope jumps.
        scores, step = np.linspace(-6.03, 6.01, 41), 1e-6
        for label in (0, 1):
            labels, slopes = np.full(41, label, np.uint8), np.empty(41)
            measure_rows(rule(name), scores, labels, None, slopes)
            expected = (FORMULAS[name](scores + step, label) - FORMULAS[name](scores - step, label)) / (2 * step)
            assert slopes == pytest.approx(expected, rel=1e-4, abs=1e-6)

    def test_link(self, name: str) -> None:
        scores = np.linspace(-30, 30, 13).astype(np.float32)
        assert predictions(rule(name), scores) == pytest.approx(LINKS[name](scores.astype(np.float64)), rel=1e-5)

    def test_no_score_is_better_than_the_best(self, name: str) -> None:
        labels, weights = labels_for(name, 301).astype(float), np.random.default_rng(2).integers(0, 3, 301)
        best = best_score(rule(name), labels, weights)
        least = weights @ FORMULAS[name](best, labels)
        for other in (best - 0.05, best + 0.05, best - 2, best + 2):
            assert weights @ FORMULAS[name](other, labels) >= least

    def test_scales_follow_the_labels(self, name: str) -> None:
        """Labels that are a thousand times larger have scores, or slopes, that are."""
        labels = labels_for(name, 301).astype(float)
        small = scales_of(rule(name), labels)
        large = scales_of(rule_of(LossConfig(name=name, quantile=TAU, delta=1_000 * DELTA)), 1_000 * labels)
        if not LOSSES[name].for_numbers:
            assert small == large == Scales()
            return
        grown = (1, 1_000) if name == "poisson" else (1_000, 1 if name == "quantile" else 1_000)
        assert (large.score / small.score, large.slope / small.slope) == pytest.approx(grown)


def test_the_logistic_loss_of_huge_scores_does_not_overflow() -> None:
    scores, labels = np.array([1e4, -1e4], np.float32), np.array([0, 1], np.uint8)
    assert total_loss(rule("logistic"), scores, labels) == pytest.approx(2e4)


def test_class_weights_multiply_the_losses_and_slopes_of_their_classes() -> None:
    weighted = ClassWeighted(Logistic(), np.float32(0.5), np.float32(3))
    scores = np.array([0.4, -0.7])
    for label, weight in ((0, 0.5), (1, 3)):
        labels, plain, slopes = np.full(2, label, np.uint8), np.empty(2), np.empty(2)
        expected = weight * measure_rows(Logistic(), scores, labels, None, plain)
        assert measure_rows(weighted, scores, labels, None, slopes) == pytest.approx(expected, rel=1e-6)
        assert slopes == pytest.approx(weight * plain, rel=1e-6)


def test_slopes_of_poisson_in_training_stop_growing_far_above_the_labels() -> None:
    """One row with a mean of exp(50) must not count as much as all others together; means near the labels do."""
    config, labels = LossConfig(name="poisson"), np.array([0.0, 2.0, 9.0])
    rule = rule_to_train(config, scales_of(rule_of(config), labels))
    slopes = np.empty(4)
    measure_rows(rule, np.log([1.0, 36.0, 40.0, 1e20]), np.full(4, 2.0), None, slopes)
    assert slopes == pytest.approx([-1, 34, 34, 34], rel=1e-5)
    # A later label may be larger than all that were seen before.
    measure_rows(rule, np.log([1.0, 900.0, 1e9, 1e20]), np.full(4, 1_000.0), None, slopes)
    assert slopes == pytest.approx([-999, -100, 3_000, 3_000], rel=1e-5)


def test_a_poisson_model_recovers_from_first_steps_that_are_too_long(tmp_path: Path) -> None:
    """Forty columns of values up to 16 at a rate of 0.3: the first row moves its own score by about 100."""
    rng = np.random.default_rng(4)
    values = rng.integers(0, 17, (1_000, 40)).astype(np.float32)
    counts = rng.poisson(np.exp(1 + (values - 8) @ rng.normal(0, 0.015, 40)))
    run = paceline.train(
        data=(values, counts), loss="poisson", learning_rate=0.3, epochs=100, workers=1, run=tmp_path / "run",
        progress=False,
    )  # fmt: skip
    means = paceline.load(run.path).predict(scipy.sparse.csr_matrix(values))
    assert sklearn.metrics.mean_poisson_deviance(counts, means) < 1.15


def test_labels_that_are_all_the_same_have_a_unit_too() -> None:
    assert scales_of(rule("squared"), np.full(5, -3.0)).score == pytest.approx(3)
    assert scales_of(rule("squared"), np.zeros(5)).score == 1
    assert np.isfinite(scales_of(rule("poisson"), np.zeros(5))).all()
