"""Do the estimators pass scikit-learn's own checks?

`tests/conftest.py` sets SCIPY_ARRAY_API before SciPy is imported, without which some checks would be skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sklearn.utils.estimator_checks import parametrize_with_checks

from paceline.sklearn import FMClassifier, FMRegressor, PacelineClassifier, PacelineRegressor

WEIGHTS = ("check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data")
# Any stochastic fit fails these two: a row of weight 2 is one step, and two rows are two.
STOCHASTIC = [PacelineClassifier(), PacelineRegressor(), FMClassifier(), FMRegressor()]
FINISHED = [
    PacelineClassifier(finish="optimum", l2=0.01),
    PacelineClassifier("squared-hinge", finish="optimum", l2=0.01),
    PacelineRegressor(finish="optimum", l2=0.01),
    PacelineRegressor("huber", finish="optimum", l2=0.01),
    PacelineRegressor("poisson", finish="optimum", l2=0.01),
]


def expected_failures(estimator: Any) -> dict[str, str]:
    if getattr(estimator, "finish", None):
        return {}
    return dict.fromkeys(WEIGHTS, "steps are taken row by row")


@parametrize_with_checks([*STOCHASTIC, *FINISHED], expected_failed_checks=expected_failures)
def test_scikit_learns_check(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)
