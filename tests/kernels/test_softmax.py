"""The loops of softmax regression against float64, at class counts on both sides of a vector register."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.kernels.softmax import LANES, gradient, pad, padded_classes, score_rows, unpad


@given(st.integers(1, 50), st.integers(1, 9))
def test_padding_and_back(classes: int, rows: int) -> None:
    values = np.arange(rows * classes, dtype=np.float32) + 1
    padded = np.zeros(rows * padded_classes(classes), np.float32)
    pad(values, classes, padded)
    table = padded.reshape(rows, -1)
    assert table.shape[1] % LANES == 0
    assert np.array_equal(table[:, :classes], values.reshape(rows, classes))
    assert not table[:, classes:].any()
    back = np.empty_like(values)
    unpad(padded, classes, back)
    assert np.array_equal(back, values)


def padded_weights(pixels: int, classes: int, chance: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    values = chance.standard_normal((pixels + 1, classes)).astype(np.float32)
    padded = np.zeros((pixels + 1) * padded_classes(classes), np.float32)
    pad(values.reshape(-1), classes, padded)
    return values, padded


@given(
    num_pixels=st.integers(1, 40),
    classes=st.sampled_from([2, LANES - 1, LANES, LANES + 1, 2 * LANES, 40]),
    rows=st.integers(0, 6),
    seed=st.integers(0, 99),
)
@settings(max_examples=60)
def test_scores_losses_and_sums(num_pixels: int, classes: int, rows: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    values, padded = padded_weights(num_pixels, classes, chance)
    pixels = chance.integers(0, 256, (rows, num_pixels), dtype=np.uint8)
    pixels[chance.random(pixels.shape) < 0.5] = 0
    labels = chance.integers(0, classes, rows).astype(np.uint16)
    length = padded_classes(classes)
    drawn, others = np.empty(num_pixels + 1, np.int64), np.empty(length, np.float32)

    found = np.full((rows, length), np.nan, np.float32)
    score_rows(padded, pixels, drawn, others, found)
    x = np.hstack([pixels / 255, np.ones((rows, 1))])
    scores = x @ values.astype(np.float64)
    np.testing.assert_allclose(found[:, :classes], scores, rtol=1e-4, atol=1e-4)
    assert not found[:, classes:].any()

    sums = np.full_like(padded, np.nan)
    losses = gradient(padded, pixels, labels, classes, drawn, np.empty(length, np.float32), others, sums)
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    assert losses == pytest.approx(-np.log(p[np.arange(rows), labels]).sum(), rel=1e-4, abs=1e-4)
    p[np.arange(rows), labels] -= 1
    np.testing.assert_allclose(sums.reshape(-1, length)[:, :classes], x.T @ p, atol=1e-4)
    assert not sums.reshape(-1, length)[:, classes:].any()


def test_weights_of_blank_pixels_do_not_matter() -> None:
    """Not even if they are not numbers: blank pixels are not visited."""
    _, padded = padded_weights(3, 4, np.random.default_rng(1))
    pixels = np.array([[0, 200, 0]], np.uint8)
    results = []
    for blank in (0.0, np.nan):
        padded.reshape(4, -1)[[0, 2]] = blank
        sums = np.empty_like(padded)
        scratch = np.empty(4, np.int64), np.empty(LANES, np.float32), np.empty(LANES, np.float32)
        losses = gradient(padded, pixels, np.array([1], np.uint16), 4, *scratch, sums)
        results.append((losses, sums.tobytes()))
        assert not sums.reshape(4, -1)[[0, 2]].any()
    assert results[0] == results[1]
    assert np.isfinite(results[0][0])


def test_a_class_that_is_almost_sure_or_almost_impossible_has_a_finite_loss() -> None:
    padded = np.zeros(2 * LANES, np.float32)
    padded[LANES : LANES + 2] = 5_000, -5_000
    pixels = np.zeros((1, 1), np.uint8)
    for label, loss in ((0, 0.0), (1, 10_000.0)):
        scratch = np.empty(2, np.int64), np.empty(LANES, np.float32), np.empty(LANES, np.float32)
        sums = np.empty_like(padded)
        assert gradient(padded, pixels, np.array([label], np.uint16), 2, *scratch, sums) == pytest.approx(loss)
        assert sums[LANES : LANES + 2].tolist() == [1 - (label == 0), -float(label == 1)]
