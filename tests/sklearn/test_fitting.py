"""Training in memory is a run without its folder: the same bits, and it can go on."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

import paceline
from paceline.data.labels import Labels
from paceline.data.memory.dataset import LabelledRows, dataset_in_memory
from paceline.data.memory.matrices import rows_of_matrix
from paceline.errors import PacelineError
from paceline.settings import OptimizerConfig, RunConfig
from paceline.sklearn import FMClassifier, PacelineClassifier, PacelineRegressor
from paceline.sklearn.fitting import FM, LINEAR, Family, as_value_errors, train

RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 6)) * [1, 1000, 1, 1, 1, 1]
Y = (X[:, 0] > X[:, 2]).astype(np.uint8)


def memory(rows: slice = slice(None)) -> Any:
    return dataset_in_memory(LabelledRows(rows_of_matrix(X[rows]), Y[rows], None, Labels()), scale="none")


@pytest.mark.parametrize("family", [LINEAR, FM], ids=["linear", "fm"])
@pytest.mark.parametrize("settings", [{"pace": "sync", "workers": 2}, {"pace": "async", "batch_size": 1}])
def test_the_bits_are_those_of_a_run(family: Family, settings: dict[str, Any], tmp_path: Path) -> None:
    settings = {"epochs": 3, "seed": 5, "workers": 1, "batch_size": 20, **settings}
    run = paceline.train(
        data=(X, Y), scale="none", model=family.model, run=tmp_path / "run", progress=False, **settings
    )
    tensors = paceline.load(run.path).tensors
    values = train(family, RunConfig(data="memory", model=family.model, **settings), memory()).values[:]
    assert values[:-1, 0].tolist() == tensors["weight"].tolist()
    assert values[-1, 0] == tensors["bias"][0]
    if "factors" in tensors:
        assert values[:-1, 1:].tolist() == tensors["factors"].tolist()


def test_two_halves_in_order_are_one_run_over_both() -> None:
    config = RunConfig(data="memory", model="linear", pace="async", batch_size=1, shuffle=False)
    whole = train(LINEAR, config, memory())
    first = train(LINEAR, config, memory(slice(0, 300)))
    kept = first.state.table.copy()
    second = train(LINEAR, config, memory(slice(300, 600)), first.state)
    assert second.state.table.tobytes() == whole.state.table.tobytes()
    assert second.values[:].tobytes() == whole.values[:].tobytes()
    assert second.state.fits == 2
    # The state that it began with is as it was.
    assert first.state.table.tobytes() == kept.tobytes()


def test_rows_are_freed_when_a_fit_ends() -> None:
    """Not by the garbage collector, which comes some fits later."""
    gc.collect()
    gc.disable()
    try:
        dataset = memory()
        train(LINEAR, RunConfig(data="memory", model="linear", pace="async", batch_size=1), dataset)
        left = weakref.ref(dataset)
        del dataset
        assert left() is None
    finally:
        gc.enable()


def test_another_optimizer_cannot_go_on() -> None:
    config = RunConfig(data="memory", model="linear")
    first = train(LINEAR, config, memory())
    other = RunConfig(data="memory", model="linear", optimizer=OptimizerConfig(name="sgd"))
    with pytest.raises(PacelineError, match="`partial_fit` cannot change optimizer after the first fit"):
        train(LINEAR, other, memory(), first.state)


def test_errors_become_value_errors_with_their_hints() -> None:
    with pytest.raises(ValueError, match=r"wrong \(do this\)"), as_value_errors():
        raise PacelineError("wrong", "do this")


@pytest.mark.parametrize("kind", [PacelineClassifier, PacelineRegressor, FMClassifier])
def test_a_fit_that_fails_leaves_nothing_of_the_one_before(kind: Any) -> None:
    """What it learned would be taken for weights of the new columns and classes."""
    estimator = kind(random_state=0).fit(X[:, :2], Y)
    with pytest.raises(ValueError, match="no weight may be negative"):
        estimator.fit(X, 1 - Y, sample_weight=-np.ones(len(Y)))
    with pytest.raises(NotFittedError):
        estimator.predict(X)
    if kind is not PacelineRegressor:
        with pytest.raises(ValueError, match="classes must be given"):
            estimator.partial_fit(X, Y)
    again = estimator.fit(X, Y)
    assert (again.coef_ == kind(random_state=0).fit(X, Y).coef_).all()
