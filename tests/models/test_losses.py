"""Every loss: its slope is the derivative of its value, and its value is the formula in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.kernels.losses import measure_rows
from paceline.models.losses import LOSSES, predictions, total_loss

FORMULAS: dict[str, Any] = {
    "logistic": lambda z, y: np.logaddexp(0, -(2 * y - 1) * z),
    "squared": lambda z, y: (z - y) ** 2 / 2,
}
LINKS: dict[str, Any] = {"logistic": lambda z: 1 / (1 + np.exp(-z)), "squared": lambda z: z}


def test_every_loss_has_a_formula_here() -> None:
    assert set(FORMULAS) == set(LINKS) == set(LOSSES)


@pytest.mark.parametrize("name", FORMULAS)
class TestEveryLoss:
    def test_value(self, name: str) -> None:
        chance = np.random.default_rng(0)
        scores, labels = chance.normal(0, 4, 500).astype(np.float32), chance.integers(0, 2, 500).astype(np.uint8)
        expected = FORMULAS[name](scores.astype(np.float64), labels.astype(np.float64)).sum()
        assert total_loss(LOSSES[name], scores, labels) == pytest.approx(expected, rel=1e-9)

    def test_slope(self, name: str) -> None:
        scores, step = np.linspace(-6, 6, 41), 1e-6
        for label in (0, 1):
            labels, slopes = np.full(41, label, np.uint8), np.empty(41)
            measure_rows(LOSSES[name], scores, labels, slopes)
            expected = (FORMULAS[name](scores + step, label) - FORMULAS[name](scores - step, label)) / (2 * step)
            assert slopes == pytest.approx(expected, rel=1e-4, abs=1e-6)

    def test_link(self, name: str) -> None:
        scores = np.linspace(-30, 30, 13).astype(np.float32)
        assert predictions(LOSSES[name], scores) == pytest.approx(LINKS[name](scores.astype(np.float64)), rel=1e-5)


def test_the_logistic_loss_of_huge_scores_does_not_overflow() -> None:
    scores, labels = np.array([1e4, -1e4], np.float32), np.array([0, 1], np.uint8)
    assert total_loss(LOSSES["logistic"], scores, labels) == pytest.approx(2e4)
