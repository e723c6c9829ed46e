"""Kernels against the compiled loops of the CPU, one row at a time, with hot keys as columns and without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.data.labels import Labels
from paceline.data.rows import EpochOrder
from paceline.data.sparse.batch import Batch
from paceline.errors import ConfigError
from paceline.kernels.gate import UNBOUNDED
from paceline.kernels.private import NoCopies
from paceline.kernels.row_loop import train_rows
from paceline.kernels.steps import GateView
from paceline.models.factorization import build_on
from paceline.models.linear import OnLabels, build_for
from paceline.parameters.keyed import KeyedStore
from paceline.settings import FactorsConfig, LossConfig, OptimizerConfig, RunConfig
from paceline.torch.sparse.training import SparseTraining, check_main_memory

FEATURES, HOT, ROWS = 40, 12, 20


def some_rows(kind: str = "two-classes", weighted: bool = False, longest: int = 9) -> Batch:
    """Rows of which most have the first keys, some with numbers and some with ones."""
    rng = np.random.default_rng(7)
    keys, values = [], []
    for _ in range(ROWS):
        hot = np.flatnonzero(rng.random(HOT) < 0.7)
        cold = rng.choice(np.arange(HOT, FEATURES), rng.integers(0, longest), replace=False)
        found = np.concatenate([hot, cold])
        keys.append(found.tolist())
        values.append(np.where(found % 3 == 0, rng.normal(size=len(found)), 1.0).tolist())
    rows = Batch.from_lists([0] * ROWS, keys, values)
    labels: Any = rng.integers(0, 2, ROWS).astype(np.uint8)
    if kind == "numbers":
        labels = rng.poisson(2, ROWS).astype(np.float32)
    elif kind == "classes":
        labels = rng.integers(0, 5, ROWS).astype(np.uint16)
    weights = rng.integers(0, 3, ROWS).astype(np.float32) if weighted else None
    return rows._replace(labels=labels, weights=weights)


class _Split:
    def __init__(self, rows: int) -> None:
        self.rows, self.blocks, self.nonzeros = rows, [self], 9 * rows


class Data:
    """What training takes from a dataset."""

    def __init__(self, rows: Batch) -> None:
        self.rows = rows
        self.manifest = self
        self.hot_keys = range(HOT)

    def split(self, name: str) -> Any:
        return _Split(self.rows.num_rows)

    def block(self, split: str, index: int) -> Batch:
        return self.rows


def config_of(settings: OptimizerConfig, loss: LossConfig | None = None, **factors: Any) -> RunConfig:
    return RunConfig(
        optimizer=settings, loss=loss or LossConfig(name="logistic"), factors=FactorsConfig(**factors), seed=3
    )


OPTIMIZERS = {
    "sgd": OptimizerConfig(name="sgd", learning_rate=0.1),
    "sgd, l2": OptimizerConfig(name="sgd", learning_rate=0.1, l2=0.02),
    "adagrad": OptimizerConfig(name="adagrad", learning_rate=0.2),
    "adagrad, l2": OptimizerConfig(name="adagrad", learning_rate=0.2, l2=0.02),
    "ftrl": OptimizerConfig(name="ftrl", learning_rate=0.2, l1=0.01, l2=0.02),
    # Nothing keeps its first divisors away from 0.
    "ftrl without β": OptimizerConfig(name="ftrl", learning_rate=0.2, own={"beta": 0.0}),
}
LOSSES = [
    LossConfig(name="logistic"), LossConfig(name="squared"), LossConfig(name="hinge"), LossConfig(name="squared-hinge"),
    LossConfig(name="poisson"), LossConfig(name="quantile", quantile=0.3), LossConfig(name="huber", delta=0.7),
]  # fmt: skip


def linear(optimizer: str, loss: LossConfig | None = None) -> Any:
    return build_for(config_of(OPTIMIZERS[optimizer], loss), FEATURES)


def classes(optimizer: str) -> Any:
    config = config_of(OPTIMIZERS[optimizer], LossConfig(name="softmax"))
    return build_for(config, FEATURES, Labels("classes", tuple("abcde")))


def fm(of_weights: str, **factors: Any) -> Any:
    config = config_of(OPTIMIZERS[of_weights], None, dim=5, initial=0.1, **factors)
    return build_on(OnLabels(config), FEATURES)


def on_cpu(model: Any, rows: Batch, order: Any) -> tuple[KeyedStore, float]:
    """The table after one update per row."""
    store = KeyedStore(model.layout.table)
    gate = GateView(np.zeros((1, 8), np.int64), 0, UNBOUNDED, 10, np.zeros((1, 8), np.int64))
    none = NoCopies(0, 0, np.zeros(1, np.float32), np.zeros(8, np.int64), 1, 1, 0.25, np.zeros(1, np.float32))
    _, losses = train_rows(model.make_kernel(), store.arrays_at(0), rows, order, 0, none, gate)
    return store, losses


def row_by_row(model: Any, rows: Batch, with_columns: bool) -> tuple[SparseTraining, float]:
    training = SparseTraining(model, Data(rows))
    training.load_rows(EpochOrder([rows.num_rows], shuffle=False), with_columns)
    return training, sum(float(training.train(i, i + 1, 1)) for i in range(rows.num_rows))


MODELS = [
    *(pytest.param(linear(name), "two-classes", id=f"linear, {name}") for name in OPTIMIZERS),
    *(
        pytest.param(linear("adagrad", loss), "numbers" if loss.name in ("squared", "poisson", "quantile", "huber")
                     else "two-classes", id=f"linear, {loss.name}")
        for loss in LOSSES[1:]
    ),
    *(pytest.param(classes(name), "classes", id=f"softmax, {name}") for name in ("adagrad, l2", "ftrl")),
    *(pytest.param(fm(name), "two-classes", id=f"fm, {name}") for name in ("adagrad, l2", "ftrl")),
    pytest.param(fm("adagrad", row_wise=True, l2=0.02), "two-classes", id="fm, row-wise, l2"),
    pytest.param(fm("sgd", optimizer="sgd", l2=0.02), "two-classes", id="fm, factors by sgd"),
]  # fmt: skip


@pytest.mark.parametrize("with_columns", [False, True], ids=["listed", "columns"])
@pytest.mark.parametrize(("model", "kind"), MODELS)
def test_updates_row_by_row_are_those_of_the_cpu(model: Any, kind: str, with_columns: bool) -> None:
    rows = some_rows(kind, weighted=with_columns)
    expected, expected_loss = on_cpu(model, rows, np.arange(ROWS, dtype=np.int32))
    training, loss = row_by_row(model, rows, with_columns)
    # A row is damped as if it were alone, which it is.
    assert loss == pytest.approx(expected_loss, rel=1e-4)
    np.testing.assert_allclose(training.table.states, expected.states, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize(
    ("model", "kind"), [(linear("adagrad"), "two-classes"), (classes("ftrl"), "classes"), (fm("ftrl"), "two-classes")]
)
def test_rows_of_very_different_lengths(monkeypatch: pytest.MonkeyPatch, model: Any, kind: str) -> None:
    """Long ones are read in chunks, at async and in sync."""
    rows = some_rows(kind, longest=FEATURES - HOT)
    in_one = SparseTraining(model, Data(rows))
    in_one.load_rows(EpochOrder([ROWS], shuffle=False), with_columns=False)
    in_one.update(0, ROWS)
    monkeypatch.setattr("paceline.torch.sparse.rows.MOST_LISTED_AT_ONCE", 16)
    expected, expected_loss = on_cpu(model, rows, np.arange(ROWS, dtype=np.int32))
    training, loss = row_by_row(model, rows, with_columns=False)
    assert not training._rows.shape.one_chunk
    assert loss == pytest.approx(expected_loss, rel=1e-4)
    np.testing.assert_allclose(training.table.states, expected.states, rtol=2e-3, atol=2e-5)
    training.table.begin()
    training.update(0, ROWS)
    np.testing.assert_allclose(training.table.states, in_one.table.states, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("with_columns", [False, True])
@pytest.mark.parametrize("model", [linear("adagrad, l2"), fm("ftrl"), classes("sgd, l2")])
def test_warming_up_changes_nothing(model: Any, with_columns: bool) -> None:
    kind = "classes" if model.layout.table.dim == 5 else "two-classes"
    training, _ = row_by_row(model, some_rows(kind).slice(0, 3), with_columns)
    before = training.table.states
    training.warm_up()
    assert (training.table.states == before).all()
    assert before.any()


class _Large(Data):
    def split(self, name: str) -> Any:
        return _Split(1 << 20)


def test_launches_grow_with_the_rows_before() -> None:
    model = build_for(config_of(OPTIMIZERS["sgd"]), FEATURES)
    training = SparseTraining(model, _Large(some_rows()))
    pieces = training._pieces(64, 70_000, 65_536)
    assert pieces[0] == (64, 96)
    assert all(later - earlier <= max(32, earlier // 8) for earlier, later in pieces)
    assert [first for first, _ in pieces[1:]] == [last for _, last in pieces[:-1]]
    assert pieces[-1][1] == 70_000
    assert training._pieces(70_000, 70_000, 65_536) == []
    assert training._pieces(1 << 20, 1 << 21, 65_536)[0] == (1 << 20, (1 << 20) + (1 << 15))
    assert training._pieces(1 << 20, 1 << 21, 1000)[0] == (1 << 20, (1 << 20) + 1000)


def test_many_rows_at_once_do_not_overshoot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that all say the same, with a rate at which a sum of their steps would go far beyond the optimum."""
    rows = Batch.from_lists([1] * 960, [[0, 1]] * 960, [[1.0, 1.0]] * 960)
    rows.labels[::4] = 0
    model = build_for(config_of(OptimizerConfig(name="sgd", learning_rate=0.5)), FEATURES)
    training = SparseTraining(model, Data(rows))
    training.load_rows(EpochOrder([960], shuffle=False), with_columns=True)
    # One program has all rows, and starts from the same weights for them all.
    monkeypatch.setattr("paceline.torch.sparse.training.RUNS_PER_PROGRAM", 32)
    monkeypatch.setattr(SparseTraining, "_pieces", lambda self, *piece: [piece[:2]])
    losses = [float(training.train(0, 960, 960)) / 960 for _ in range(6)]
    best = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    assert losses[0] == pytest.approx(np.log(2), rel=1e-5)
    assert losses[-1] == pytest.approx(best, abs=0.02)
    assert max(losses) <= losses[0] + 1e-6


@pytest.mark.parametrize("weight", [0.01, 100.0])
def test_rows_that_count_more_or_less_are_damped_more_or_less(monkeypatch: pytest.MonkeyPatch, weight: float) -> None:
    rows = Batch.from_lists([1] * 960, [[0, 1]] * 960, [[1.0, 1.0]] * 960)
    rows.labels[::4] = 0
    rows = rows._replace(weights=np.full(960, weight, np.float32))
    model = build_for(config_of(OptimizerConfig(name="sgd", learning_rate=0.5 / weight)), FEATURES)
    training = SparseTraining(model, Data(rows))
    training.load_rows(EpochOrder([960], shuffle=False), with_columns=True)
    monkeypatch.setattr("paceline.torch.sparse.training.RUNS_PER_PROGRAM", 32)
    monkeypatch.setattr(SparseTraining, "_pieces", lambda self, *piece: [piece[:2]])
    losses = [float(training.train(0, 960, 960)) / 960 / weight for _ in range(6)]
    best = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    assert losses[-1] == pytest.approx(best, abs=0.02)
    assert max(losses) <= losses[0] + 1e-6


@pytest.mark.parametrize(("model", "kind"), [(fm("adagrad, l2"), "two-classes"), (classes("adagrad, l2"), "classes")])
def test_a_program_updates_listed_keys_row_by_row(monkeypatch: pytest.MonkeyPatch, model: Any, kind: str) -> None:
    """So they are not damped as if its rows were computed at the same time. Only the bias is."""
    rows = some_rows(kind)
    training = SparseTraining(model, Data(rows))
    training.load_rows(EpochOrder([ROWS], shuffle=False), with_columns=False)
    monkeypatch.setattr(SparseTraining, "_pieces", lambda self, *piece: [piece[:2]])
    training.train(0, ROWS, ROWS)
    expected, _ = on_cpu(model, rows, np.arange(ROWS, dtype=np.int32))
    found, wanted = training.table.states[:FEATURES, 0], expected.states[:FEATURES, 0]
    assert np.linalg.norm(found - wanted) < 0.25 * np.linalg.norm(wanted)


def test_any_number_of_keys_may_have_bits() -> None:
    """80 of them take three words, but kernels read powers of two."""
    rng = np.random.default_rng(1)
    keys = [sorted(rng.choice(80, 20, replace=False).tolist()) for _ in range(ROWS)]
    rows = Batch.from_lists([0, 1] * (ROWS // 2), keys, [[1.0] * 20] * ROWS)
    data = Data(rows)
    data.hot_keys = range(80)
    model = build_for(config_of(OPTIMIZERS["adagrad"]), 80)
    training = SparseTraining(model, data)
    training.load_rows(EpochOrder([ROWS], shuffle=False), with_columns=True)
    assert training._rows.shape.words == 4
    training.warm_up()
    loss = sum(float(training.train(i, i + 1, 1)) for i in range(ROWS))
    expected, expected_loss = on_cpu(model, rows, np.arange(ROWS, dtype=np.int32))
    assert loss == pytest.approx(expected_loss, rel=1e-4)
    np.testing.assert_allclose(training.table.states, expected.states, rtol=2e-3, atol=2e-5)


def test_rows_beyond_this_machines_memory_are_refused() -> None:
    check_main_memory(1_000_000, 39_000_000)
    with pytest.raises(ConfigError, match=r"rows need about 361200\.0 GB of this machine's memory") as error:
        check_main_memory(4_200_000_000_000, 39 * 4_200_000_000_000)
    assert error.value.hint
