"""Softmax regression against finite differences, and against the textbook in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.data.images.blocks import Images
from paceline.data.images.crops import Crops
from paceline.models.images import ClassOutput, cross_entropy
from paceline.models.model import Step
from paceline.models.softmax import Softmax
from paceline.settings import ImageConfig


def make(side: int, classes: int, rows: int, seed: int) -> tuple[Softmax, Images, np.ndarray]:
    chance = np.random.default_rng(seed)
    model = Softmax(Crops(ImageConfig(), (side, side, 1), 0), classes)
    pixels = chance.integers(0, 256, (rows, side * side), dtype=np.uint8)
    pixels[chance.random(pixels.shape) < 0.6] = 0
    labels = chance.integers(0, classes, rows).astype(np.uint16)
    values = chance.standard_normal(model.num_trained).astype(np.float32)
    return model, Images(pixels, labels), values


@given(side=st.integers(1, 9), classes=st.integers(2, 40), rows=st.integers(0, 12), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_gradient_and_scores_are_the_textbooks(side: int, classes: int, rows: int, seed: int) -> None:
    model, images, values = make(side, classes, rows, seed)
    sums = np.full_like(values, 7)
    losses = model.gradient(Step(images, (0, 0), dense=values, dense_sums=sums))
    x = np.hstack([images.pixels / 255, np.ones((rows, 1))])
    scores = x @ values.reshape(-1, classes).astype(np.float64)
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    picked = np.arange(rows), images.labels
    assert losses == pytest.approx(-np.log(p[picked]).sum(), rel=1e-4, abs=1e-4)
    slopes = p.copy()
    slopes[picked] -= 1
    np.testing.assert_allclose(sums.reshape(-1, classes), x.T @ slopes, atol=3e-5 * max(1, rows))
    found = model.scores(values, images)
    np.testing.assert_allclose(found, scores, rtol=1e-4, atol=1e-4)
    assert cross_entropy(found, images.labels) == pytest.approx(losses, rel=1e-4, abs=1e-4)
    np.testing.assert_allclose(ClassOutput(model).probabilities(found), p, atol=1e-4)


def test_finite_differences() -> None:
    model, images, values = make(6, 5, 20, seed=1)
    sums = np.empty_like(values)
    model.gradient(Step(images, (0, 0), dense=values, dense_sums=sums))
    chance, step = np.random.default_rng(2), 1e-2
    for place in [*chance.choice(len(values), 40, replace=False), len(values) - 1]:
        ends = []
        for sign in (1, -1):
            moved = values.copy()
            moved[place] += sign * step
            ends.append(model.gradient(Step(images, (0, 0), dense=moved, dense_sums=np.empty_like(values))))
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(sums[place], rel=2e-2, abs=2e-2)


def test_huge_scores_do_not_overflow() -> None:
    model, images, values = make(4, 3, 5, seed=3)
    assert np.isfinite(
        model.gradient(Step(images, (0, 0), dense=values * np.float32(1e4), dense_sums=np.empty_like(values)))
    )
