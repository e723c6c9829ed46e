"""Slopes and second derivatives of losses are those of finite differences."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.models.loss_entries import LOSSES
from paceline.settings import LossConfig
from paceline.sklearn.smooth import BOUNDED, SMOOTH, Measured

RNG = np.random.default_rng(0)
ROWS, CLASSES, STEP = 40, 4, 1e-6


def measured(name: str, scores: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Measured:
    targets = np.arange(ROWS)[:, None] % (CLASSES if name == "softmax" else 2)
    return SMOOTH[name](scores, targets.astype(np.float64), LossConfig(name=name, delta=0.7))


@pytest.mark.parametrize("name", SMOOTH)
def test_slopes_and_bends_are_differences(name: str) -> None:
    outputs = CLASSES if name == "softmax" else 1
    scores, change = RNG.normal(size=(2, ROWS, outputs))
    before, here, after = (measured(name, scores + step * change) for step in (-STEP, 0, STEP))
    along = (here.slopes * change).sum(axis=1)
    np.testing.assert_allclose((after.losses - before.losses) / (2 * STEP), along, atol=1e-7)
    np.testing.assert_allclose((after.slopes - before.slopes) / (2 * STEP), here.bend(change), atol=1e-7)


def test_names_are_those_of_losses() -> None:
    assert {*BOUNDED} < {*SMOOTH} < {*LOSSES}
