"""Every store of parameters passes this suite, with every optimizer that it may have, against formulas in float64."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from paceline.parameters.dense import DenseStore
from paceline.parameters.keyed import KeyedStore
from paceline.parameters.layout import DenseLayout, Group, Initial, TableLayout
from paceline.parameters.optimizers import DENSE_OPTIMIZERS, OPTIMIZERS, TABLE_OPTIMIZERS, updates_of
from paceline.parameters.store import DenseValues, Floats, Store
from paceline.settings import OptimizerConfig
from paceline.torch.sparse.table import GpuTable
from paceline.torch.sparse.triton_ import find_device
from paceline.torch.store import TorchStore
from tests.conformance import formulas
from tests.skips import needs_gpu

Keys = NDArray[np.uint32]
ROWS = 10
SETTINGS = [
    OptimizerConfig(name="sgd", learning_rate=0.1, l2=0.01),
    OptimizerConfig(name="sgd", learning_rate=0.1, decay_rows=50),
    OptimizerConfig(name="sgd", learning_rate=0.1, l2=0.01, own={"momentum": 0.9}),
    OptimizerConfig(name="adagrad", learning_rate=0.1, l2=0.01),
    OptimizerConfig(name="ftrl", learning_rate=0.1, l1=0.02, l2=0.01),
    OptimizerConfig(name="adam", learning_rate=0.1, l2=0.01),
]


# Types that mypy checks: each of these is a `Store`.


def table(settings: OptimizerConfig) -> Store[Keys, Floats]:
    return KeyedStore(TableLayout(40, (Group("weight", 1, settings),), bias=False))


def wide_table(settings: OptimizerConfig) -> Store[Keys, Floats]:
    initial = Initial("normal", 0.1) if OPTIMIZERS[settings.name].keeps_weights else Initial()
    return KeyedStore(TableLayout(40, (Group("factors", 3, settings, initial),), bias=False))


def slice_of_a_table(settings: OptimizerConfig) -> Store[Keys, Floats]:
    return KeyedStore(TableLayout(120, (Group("factors", 2, settings),), bias=False), shard=1, num_shards=3)


def table_on_a_gpu(settings: OptimizerConfig) -> Store[Keys, Floats]:
    return GpuTable(TableLayout(40, (Group("weight", 1, settings),), bias=False), find_device())


def wide_table_on_a_gpu(settings: OptimizerConfig) -> Store[Keys, Floats]:
    initial = Initial("normal", 0.1) if OPTIMIZERS[settings.name].keeps_weights else Initial()
    return GpuTable(TableLayout(40, (Group("factors", 3, settings, initial),), bias=False), find_device())


def dense_layout(settings: OptimizerConfig) -> DenseLayout:
    return DenseLayout(40, 35, settings, epoch_rows=25, rows_per_update=ROWS)


def dense(settings: OptimizerConfig) -> DenseValues:
    return DenseStore(dense_layout(settings))


def range_of_dense(settings: OptimizerConfig) -> DenseValues:
    return DenseStore(DenseLayout(120, 75, settings, epoch_rows=25, rows_per_update=ROWS), first=40, size=40)


def tensors(settings: OptimizerConfig) -> DenseValues:
    return TorchStore(dense_layout(settings), "cpu")


def tensors_on_a_gpu(settings: OptimizerConfig) -> DenseValues:
    return TorchStore(dense_layout(settings), "cuda")


class Subject(NamedTuple):
    """How one implementation is made, and which parameters it is told that a gradient is for.

    The last `num_followed` parameters are not trained: they follow the mean.
    """

    make: Callable[[OptimizerConfig], Store[Any, Any]]
    where: Callable[[int, int], Any]
    num_followed: int


def by_key(start: int, stop: int) -> Keys:
    return np.arange(start, stop, dtype=np.uint32)


def by_range(start: int, _stop: int) -> int:
    return start


TABLES = [Subject(make, by_key, 0) for make in (table, wide_table, slice_of_a_table)]
GPU_TABLES = [Subject(make, by_key, 0) for make in (table_on_a_gpu, wide_table_on_a_gpu)]
DENSE = [Subject(make, by_range, 5) for make in (dense, range_of_dense, tensors, tensors_on_a_gpu)]
CASES = [
    pytest.param(
        subject, settings, marks=[needs_gpu] if subject.make is tensors_on_a_gpu else [],
        id=f"{subject.make.__name__}-{settings.name}{'-momentum' * ('momentum' in settings.own)}"
        f"{'-decay' * bool(settings.decay_rows)}",
    )
    for subjects, optimizers in ((TABLES + GPU_TABLES, TABLE_OPTIMIZERS), (DENSE, DENSE_OPTIMIZERS))
    for subject in subjects
    for settings in SETTINGS
    if settings.name in optimizers and (subject not in GPU_TABLES or updates_of(settings).on_gpu_by_key)
]  # fmt: skip

COMPILED = [case for case in CASES if not str(case.id).startswith(("tensors", "table_on", "wide_table_on"))]


class Reference:
    """The same parameters in float64: states [width, size, dim]."""

    def __init__(self, subject: Subject, store: Store[Any, Any], settings: OptimizerConfig) -> None:
        self.settings = settings
        states = np.array(store.states, np.float64).reshape(store.size, -1, store.dim)
        self.states = states.transpose(1, 0, 2).copy()
        self.num_trained = store.size - subject.num_followed

    def apply(self, start: int, sums: Floats, rows: int, trained: int) -> None:
        mean = sums.astype(np.float64).reshape(-1, self.states.shape[2]) / rows
        stop = start + len(mean)
        middle = min(max(start, self.num_trained), stop)
        # Three updates per epoch of 25 rows.
        update = trained // 25 * 3 + trained % 25 // ROWS + 1
        formulas.apply(self.settings, self.states[:, start:middle], mean[: middle - start], trained, update)
        self.states[0, middle:stop] -= mean[middle - start :]

    def values(self) -> Any:
        return formulas.weights(self.settings, self.states).ravel()


def read(store: Store[Any, Any], subject: Subject, rows: int) -> Floats:
    """All values, which every way to read them agrees on."""
    found = np.array(store.read(0, store.size, rows))
    middle = store.size // 3
    np.testing.assert_array_equal(store.read(middle, 5, rows), found[middle * store.dim : (middle + 5) * store.dim])
    gathered = np.zeros(len(found), np.float32)
    for start, stop in pairwise((0, middle, store.size)):
        store.gather(subject.where(start, stop), gathered[start * store.dim : stop * store.dim])
    np.testing.assert_array_equal(gathered, found)
    return found


@pytest.mark.parametrize(("subject", "settings"), CASES)
class TestEveryStore:
    @pytest.fixture(autouse=True)
    def made(self, subject: Subject, settings: OptimizerConfig) -> None:
        self.subject, self.store = subject, subject.make(settings)
        self.chance = np.random.default_rng(5)
        if isinstance(subject.where(0, 1), int):
            # Dense values begin as the model says, tables by themselves.
            start = self.store.part(0, self.store.size)
            start[:, 0] = self.chance.standard_normal(self.store.size)
            self.store.load(0, start)
        self.reference = Reference(subject, self.store, settings)

    def draw(self, start: int, stop: int) -> Floats:
        return self.chance.standard_normal((stop - start) * self.store.dim).astype(np.float32) * ROWS

    def train(self) -> None:
        """A few updates, some of them in two pieces."""
        for trained, ends in enumerate([(0, 40), (0, 11, 40), (3, 20), (30, 38), (0, 40)]):
            for start, stop in pairwise(ends):
                sums = self.draw(start, stop)
                self.reference.apply(start, sums, ROWS, 10 * trained)
                self.store.apply(self.subject.where(start, stop), sums, ROWS, 10 * trained)

    def test_an_update_follows_the_formula(self) -> None:
        before = read(self.store, self.subject, 0)
        np.testing.assert_allclose(before, self.reference.values(), rtol=1e-6)
        self.train()
        after = read(self.store, self.subject, 50)
        assert (after != before).mean() > 0.9
        np.testing.assert_allclose(after, self.reference.values(), rtol=2e-4, atol=2e-5)

    def test_a_fold_is_one_update_by_the_mean_of_all(self) -> None:
        for trained in (0, 10):
            pushes = [self.draw(4, 38) for _ in range(3)]
            self.reference.apply(4, np.sum(pushes, axis=0), 3 * ROWS, trained)
            self.store.fold([(self.subject.where(4, 38), sums) for sums in pushes], 3 * ROWS, trained)
        np.testing.assert_allclose(read(self.store, self.subject, 20), self.reference.values(), rtol=2e-4, atol=2e-5)

    def test_nothing_changes_without_rows(self) -> None:
        self.train()
        before = np.array(self.store.states)
        self.store.apply(self.subject.where(0, 40), self.draw(0, 40), 0, 0)
        self.store.fold([(self.subject.where(0, 40), self.draw(0, 40))], 0, 0)
        np.testing.assert_array_equal(self.store.states, before)

    def test_states_go_piece_by_piece_to_another_store(self, settings: OptimizerConfig) -> None:
        self.train()
        other = self.subject.make(settings)
        assert self.store.states.shape == (self.store.size, self.store.width) == (40, self.store.width)
        for start, stop in pairwise((0, 17, 40)):
            piece = self.store.part(start, stop)
            assert piece.flags.c_contiguous
            np.testing.assert_array_equal(piece, self.store.states[start:stop])
            other.load(start, piece)
        np.testing.assert_array_equal(other.states, self.store.states)
        # From there on they do the same.
        for store in (self.store, other):
            store.apply(self.subject.where(0, 40), np.ones(40 * store.dim, np.float32), ROWS, 50)
        np.testing.assert_array_equal(read(other, self.subject, 60), read(self.store, self.subject, 60))

    def test_it_begins_again_as_it_began(self, settings: OptimizerConfig) -> None:
        self.train()
        self.store.begin()
        np.testing.assert_array_equal(self.store.states, self.subject.make(settings).states)


@pytest.mark.parametrize(("subject", "settings"), COMPILED)
def test_warming_up_compiled_stores_changes_nothing(subject: Subject, settings: OptimizerConfig) -> None:
    store: Any = subject.make(settings)
    store.apply(subject.where(0, 40), np.ones(40 * store.dim, np.float32), ROWS, 0)
    before = np.array(store.states)
    store.warm_up()
    np.testing.assert_array_equal(store.states, before)


def test_every_optimizer_is_tried() -> None:
    assert {settings.name for settings in SETTINGS} == set(OPTIMIZERS) == set(formulas.UPDATES)


@pytest.mark.parametrize("subject", DENSE[:3])
def test_dense_values_take_arrays_and_tensors(subject: Subject) -> None:
    import torch

    settings, sums = SETTINGS[0], np.ones(40, np.float32)
    arrays, given = subject.make(settings), subject.make(settings)
    arrays.fold([(0, sums.copy()), (0, sums)], ROWS, 0)
    given.fold([(0, torch.from_numpy(sums.copy())), (0, torch.from_numpy(sums))], ROWS, 0)
    np.testing.assert_array_equal(given.states, arrays.states)
    out = torch.zeros(40)
    given.gather(0, out)
    np.testing.assert_array_equal(out.numpy(), arrays.read(0, 40, 0))
