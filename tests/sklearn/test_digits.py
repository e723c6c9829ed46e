"""Numbers that differ too little for float32 are not silently taken for constants."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from paceline.sklearn import FMRegressor, PacelineClassifier, PacelineRegressor

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2000, 3))
FAR = X + np.array([0, 1e7, 0])
Z = X @ [1.0, 2, 3]


@pytest.mark.parametrize("kind", [PacelineClassifier, PacelineRegressor, FMRegressor])
def test_a_column_far_from_zero_is_named(kind: Any) -> None:
    with pytest.warns(UserWarning, match="numbers in column 1 of X differ from their mean too little for float32"):
        kind(random_state=0).fit(FAR, Z > 0)


def test_columns_near_one_are_named_too(tmp_path: Any) -> None:
    """Their values need no scale, and so none is listed."""
    near = X * [1, 1e-9, 1e-9] + np.array([0, 5, 1])
    with pytest.warns(UserWarning, match="numbers in columns 1, 2 of X differ from their mean too little"):
        PacelineClassifier(random_state=0).fit(near, Z > 0)


def test_targets_far_from_zero() -> None:
    with pytest.warns(UserWarning, match=r"y differs from its mean, 1e\+09, too little for float32"):
        PacelineRegressor(random_state=0).fit(X, Z + 1e9)


@pytest.mark.parametrize(
    ("rows", "targets", "settings"),
    [
        (X + np.array([0, 1e5, 0]), Z + 1e5, {}),
        (X * [1, 1e-20, 1e20], 1e15 * Z, {}),
        (X * [1, 0, 1] + np.array([0, 1e9, 0]), Z * 0 + 1e9, {}),
        (FAR, Z + 1e9, {"finish": "optimum"}),
    ],
)
def test_numbers_that_can_be_told_apart(rows: Any, targets: Any, settings: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        regressor = PacelineRegressor(random_state=0, epochs=20, **settings).fit(rows, targets)
    if np.ptp(targets):
        assert regressor.score(rows, targets) > 0.99
