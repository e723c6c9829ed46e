"""What regressors share."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.sklearn import FMRegressor, PacelineRegressor

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 3))
Z = 1000 * X[:, 0] + 5000


@pytest.mark.parametrize("kind", [PacelineRegressor, FMRegressor])
def test_partial_fit_goes_on(kind: type) -> None:
    regressor = kind(random_state=0)
    scores = []
    for _ in range(10):
        for part in range(0, 400, 100):
            regressor.partial_fit(X[part : part + 100], Z[part : part + 100])
        scores.append(regressor.score(X, Z))
    assert scores[-1] > 0.99
    assert scores[-1] > scores[0]


def test_fit_begins_again() -> None:
    regressor = PacelineRegressor(random_state=0).fit(X, Z)
    before = regressor.coef_
    assert (regressor.partial_fit(X, -Z).coef_ != before).any()
    assert (regressor.fit(X, Z).coef_ == before).all()


def test_targets_too_large_for_float32_are_refused() -> None:
    with pytest.raises(ValueError, match="1e\\+300, which is too large"):
        PacelineRegressor().fit(X, np.where(X[:, 0] > 0, 1e300, 0))
