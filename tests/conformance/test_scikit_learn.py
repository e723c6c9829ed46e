"""Do the estimators pass scikit-learn's own checks?

`tests/conftest.py` sets SCIPY_ARRAY_API before SciPy is imported, without which some checks would be skipped.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any
from unittest import SkipTest

import pytest
from sklearn.exceptions import SkipTestWarning
from sklearn.utils.estimator_checks import (
    check_dataframe_column_names_consistency,
    check_param_validation,
    estimator_checks_generator,
    parametrize_with_checks,
)

from paceline.sklearn import FMClassifier, FMRegressor, PacelineClassifier, PacelineRegressor

WEIGHTS = ("check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data")
# Any stochastic fit fails these two: a row of weight 2 is one step, and two rows are two.
STOCHASTIC = [PacelineClassifier(), PacelineRegressor(), FMClassifier(), FMRegressor()]
# The checks that weights equal repetition have more columns than rows: without l2, there are many optima, or none.
FINISHED = [
    make(loss, finish="optimum", l2=l2)
    for make, loss in (
        (PacelineClassifier, "logistic"),
        (PacelineClassifier, "squared-hinge"),
        (PacelineRegressor, "squared"),
        (PacelineRegressor, "huber"),
        (PacelineRegressor, "poisson"),
    )
    for l2 in (0.0, 0.01)
]


def expected_failures(estimator: Any) -> dict[str, str]:
    if getattr(estimator, "finish", None):
        return {}
    return dict.fromkeys(WEIGHTS, "steps are taken row by row")


@parametrize_with_checks([*STOCHASTIC, *FINISHED], expected_failed_checks=expected_failures)
def test_scikit_learns_check(estimator: Any, check: Callable[[Any], None]) -> None:
    try:
        check(estimator)
    except SkipTest as skipped:
        pytest.fail(f"scikit-learn left this check out: {skipped}")


@pytest.mark.parametrize("estimator", [*STOCHASTIC, *FINISHED], ids=repr)
def test_scikit_learn_leaves_no_check_out(estimator: Any) -> None:
    assert os.environ["SCIPY_ARRAY_API"] == "1"
    assert find_spec("pandas")
    with warnings.catch_warnings():
        warnings.simplefilter("error", SkipTestWarning)
        found = {_name(check) for _, check in estimator_checks_generator(estimator)}
    assert found >= {*WEIGHTS, "check_array_api_input", "check_sample_weights_pandas_series"}


@pytest.mark.parametrize("estimator", STOCHASTIC, ids=repr)
@pytest.mark.parametrize("check", [check_dataframe_column_names_consistency, check_param_validation])
def test_scikit_learns_checks_of_its_own_estimators(estimator: Any, check: Callable[[str, Any], None]) -> None:
    check(type(estimator).__name__, estimator)


def _name(check: Any) -> str:
    return str(getattr(check, "func", check).__name__)
