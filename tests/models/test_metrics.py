"""Loss, error and AUC as scikit-learn has them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import log_loss, roc_auc_score

from paceline.models.losses import Logistic, total_loss
from paceline.models.metrics import ClassSums, NumberSums, Quality, TwoClassSums


def quality(scores: NDArray[np.float32], labels: NDArray[np.uint8]) -> Quality:
    """In two parts, as blocks come."""
    sums = TwoClassSums(lambda scores, labels: total_loss(Logistic(), scores, labels))
    for part in (slice(None, 1), slice(1, None)):
        sums.add(scores[part], labels[part])
    return sums.quality()


ROWS = st.lists(st.tuples(st.integers(0, 1), st.integers(-8, 8)), min_size=2, max_size=60)


@given(rows=ROWS)
@settings(max_examples=100, deadline=None)
def test_quality_with_many_ties(rows: list[tuple[int, int]]) -> None:
    labels = np.array([label for label, _ in rows], np.uint8)
    scores = np.array([score / 2 for _, score in rows], np.float32)
    got = quality(scores, labels)
    assert got["loss"] == pytest.approx(log_loss(labels, 1 / (1 + np.exp(-scores.astype(float))), labels=[0, 1]))
    assert got["error"] == pytest.approx(((scores > 0) != labels).mean())
    if 0 < labels.sum() < len(labels):
        assert got["auc"] == pytest.approx(roc_auc_score(labels, scores))
    else:
        assert math.isnan(got["auc"])


def test_classes() -> None:
    sums = ClassSums(lambda scores, labels: float(len(labels)))
    sums.add(np.array([[1, 2], [3, 0]], np.float32), np.array([1, 1], np.uint16))
    sums.add(np.array([[1, 2]], np.float32), np.array([1], np.uint16))
    assert sums.quality() == pytest.approx({"loss": 1, "error": 1 / 3, "accuracy": 2 / 3})


def test_numbers() -> None:
    sums = NumberSums(lambda scores, labels: 2.0, lambda scores: scores * 2)
    sums.add(np.array([1, 2], np.float32), np.array([2, 1], np.float32))
    assert sums.quality() == pytest.approx({"loss": 1, "rmse": (9 / 2) ** 0.5})
