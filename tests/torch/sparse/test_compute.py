"""The gradient of a worker's batch on a GPU against the models' own loops on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.data.labels import Labels
from paceline.data.sparse.batch import Batch
from paceline.errors import ConfigError
from paceline.models.factorization import build_on
from paceline.models.linear import OnLabels, build_for, make_for
from paceline.models.losses import Scales
from paceline.models.model import Step
from paceline.settings import FactorsConfig, LossConfig, OptimizerConfig, RunConfig
from paceline.torch.sparse.compute import GpuCompute

FEATURES, CLASSES = 30, 5
LOSSES = {
    "logistic": LossConfig(name="logistic"),
    "squared": LossConfig(name="squared"),
    "hinge": LossConfig(name="hinge"),
    "squared-hinge": LossConfig(name="squared-hinge"),
    "poisson": LossConfig(name="poisson"),
    "quantile": LossConfig(name="quantile", quantile=0.3),
    "huber": LossConfig(name="huber", delta=0.7),
}
FOR_NUMBERS = ("squared", "poisson", "quantile", "huber")
SOFTMAX = RunConfig(loss=LossConfig(name="softmax"))
NAMES = Labels("classes", tuple("abcde"))
UNEQUAL = np.array([0.5, 3.0], np.float32)


def linear(loss: str) -> Any:
    # What FTRL and L2 do is up to shards: a batch has values alone.
    return build_for(RunConfig(loss=LOSSES[loss], optimizer=OptimizerConfig(name="ftrl", l2=0.1)), FEATURES)


def fm(**labels: Any) -> Any:
    config = RunConfig(loss=LOSSES["logistic"], factors=FactorsConfig(dim=3))
    return build_on(OnLabels(config, **labels), FEATURES)


MODELS = {
    **{name: (linear(name), "numbers" if name in FOR_NUMBERS else "two-classes") for name in LOSSES},
    "class weights": (make_for(RunConfig(loss=LOSSES["logistic"]), FEATURES, Labels(), Scales(), UNEQUAL), ""),
    "softmax": (build_for(SOFTMAX, FEATURES, NAMES), "classes"),
    "softmax, class weights": (
        make_for(SOFTMAX, FEATURES, NAMES, Scales(), np.arange(1, 6, dtype=np.float32)), "classes"
    ),
    "fm": (fm(), ""),
    "fm, class weights": (fm(weights=UNEQUAL), ""),
}  # fmt: skip


def some_rows(labels: str = "", ones: bool = False, longest: int = 9, weighted: bool = False, count: int = 40) -> Batch:
    """Rows of up to `longest` nonzeros; some have none, and some a key twice."""
    rng = np.random.default_rng(5)
    lengths = rng.integers(0, longest + 1, count)
    lengths[3:4] = 0
    keys = [rng.integers(0, FEATURES, length).tolist() for length in lengths]
    values = [np.where(ones, 1.0, rng.normal(size=length)).tolist() for length in lengths]
    rows = Batch.from_lists([0] * count, keys, values)
    found: Any = rng.integers(0, 2, count).astype(np.uint8)
    if labels == "numbers":
        found = rng.poisson(2, count).astype(np.float32)
    elif labels == "classes":
        found = rng.integers(0, CLASSES, count).astype(np.uint16)
    return rows._replace(labels=found, weights=rng.integers(0, 3, count).astype(np.float32) if weighted else None)


def step_of(model: Any, rows: Batch) -> Step:
    """A step as a worker makes it: the bias is number 0, and its values come from a message, which is read-only."""
    distinct, local = np.unique(rows.keys, return_inverse=True)
    size = (len(distinct) + 1) * model.layout.table.dim
    weights = np.random.default_rng(6).normal(scale=0.3, size=size).astype(np.float32)
    if model.layout.table.dim == 4:
        # A bias has no factors.
        weights[1:4] = 0
    weights.flags.writeable = False
    # Longer than the batch needs, and with something in it.
    local = np.append(local + 1, [7, 7]).astype(np.uint32)
    return Step(rows, local=local, weights=weights, sums=np.full(size, 9.0, np.float32))


def compare(model: Any, compute: GpuCompute, rows: Batch) -> Step:
    step, expected = step_of(model, rows), step_of(model, rows)
    losses = model.compute().gradient(expected)
    assert compute.gradient(step) == pytest.approx(losses, rel=1e-5)
    np.testing.assert_allclose(step.sums, expected.sums, rtol=1e-4, atol=2e-5)
    assert step.sums.any()
    return step


@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_the_cpu(name: str, weighted: bool) -> None:
    model, labels = MODELS[name]
    compare(model, GpuCompute(model, 9), some_rows(labels, weighted=weighted))


@pytest.mark.parametrize("name", ["logistic", "softmax", "fm"])
def test_batches_of_all_sizes_follow_each_other(name: str) -> None:
    model, labels = MODELS[name]
    compute = GpuCompute(model, 80)
    first = compare(model, compute, some_rows(labels, longest=80))
    compare(model, compute, some_rows(labels, ones=True, count=10))
    compare(model, compute, some_rows(labels, longest=0, count=40))
    compare(model, compute, some_rows(labels, weighted=True, count=3))
    again = compare(model, compute, some_rows(labels, longest=80))
    assert again.sums.tobytes() == first.sums.tobytes()


def test_a_batch_without_rows_has_no_gradient() -> None:
    model, _ = MODELS["logistic"]
    rows = some_rows().slice(0, 0)
    assert GpuCompute(model, 9).gradient(Step(rows, local=np.zeros(4, np.uint32), weights=np.zeros(0, np.float32),
                                              sums=np.zeros(0, np.float32))) == 0.0  # fmt: skip


def test_without_a_gpu_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.torch.sparse.triton_.interpreted", lambda: False)
    monkeypatch.setattr("paceline.torch.sparse.triton_.has_gpu", lambda: False)
    with pytest.raises(ConfigError, match="`device` is `cuda`, but PyTorch finds no GPU here"):
        GpuCompute(MODELS["fm"][0], 9)
