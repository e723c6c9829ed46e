"""Tables of parameters by key: their columns, initial values, private copies, and what they may cost."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from paceline.data.sparse.key_order import KeyOrder
from paceline.errors import ConfigError
from paceline.parameters import keyed
from paceline.parameters.keyed import KeyedStore, PrivateCopies
from paceline.parameters.layout import Group, Initial, TableLayout
from paceline.settings import OptimizerConfig

KEYED_OPTIMIZERS = ("sgd", "adagrad", "ftrl")


def layout(optimizer: str = "sgd", features: int = 100) -> TableLayout:
    return TableLayout(features, (Group("weight", 1, OptimizerConfig(name=optimizer)),))


def two_groups(seed: int = 3, features: int = 300) -> TableLayout:
    """A weight under FTRL, and four factors under AdaGrad."""
    weight = Group("weight", 1, OptimizerConfig(name="ftrl", learning_rate=0.1))
    factors = Group("factors", 4, OptimizerConfig(name="adagrad"), Initial("normal", 0.1))
    return TableLayout(features, (weight, factors), seed=seed)


@pytest.mark.parametrize("blocks", [1, 2])
def test_row_wise_adagrad_remembers_one_sum_per_block_of_columns(blocks: int) -> None:
    settings = OptimizerConfig(learning_rate=0.1, l2=0.01, own={"row_wise": 1.0})
    groups = Group("weight", 1, OptimizerConfig()), Group("factors", 6, settings, Initial("normal", 0.1), blocks)
    store = KeyedStore(TableLayout(50, groups, seed=2))
    assert store.width == 2 + 6 + blocks
    factors = store.states[:50, 2:8].astype(np.float64).reshape(50, blocks, -1)
    sums = np.zeros((50, blocks, 1))
    random = np.random.default_rng(1)
    for _ in range(3):
        given = random.normal(size=(50, 7)).astype(np.float32)
        store.apply(np.arange(50, dtype=np.uint32), given.ravel(), 4, 0)
        gradient = given[:, 1:].astype(np.float64).reshape(50, blocks, -1) / 4 + 0.01 * factors
        sums += (gradient**2).mean(axis=2, keepdims=True)
        factors -= 0.1 / (np.sqrt(sums) + 1e-6) * gradient
    np.testing.assert_allclose(store.states[:50, 2:8], factors.reshape(50, 6), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(store.states[:50, 8:], sums[:, :, 0], rtol=1e-4)
    np.testing.assert_array_equal(store.read(0, 50, 0).reshape(50, 7)[:, 1:], store.states[:50, 2:8])


@pytest.mark.parametrize("blocks", [1, 3])
def test_copies_of_rows_with_several_groups_are_merged_whole(blocks: int) -> None:
    optimizer = OptimizerConfig(name="adagrad", own={"row_wise": 1.0})
    groups = Group("weight", 1, OptimizerConfig()), Group("factors", 6, optimizer, Initial("normal", 0.1), blocks)
    table = TableLayout(100, groups)
    assert table.can_merge
    private = PrivateCopies(table, num_workers=2, num_hot=20)
    store = KeyedStore(table, private_rows=private.num_rows)
    store.states[:] = 7
    private.settle(store, 0)
    for rank in range(2):
        first = private.of(rank).first
        store.table[first * store.width : (first + 21) * store.width] += 10**rank
    private.settle(store, 0)
    assert (store.states[:20] == 18).all()
    assert (store.states[20:100] == 7).all()
    assert (store.states[100] == 18).all()


@pytest.mark.parametrize("name", KEYED_OPTIMIZERS)
def test_settling_adds_up_what_every_worker_changed(name: str) -> None:
    private = PrivateCopies(layout(name), num_workers=3, num_hot=20)
    store = KeyedStore(layout(name), private_rows=private.num_rows)
    store.states[:] = 7
    private.settle(store, 0)
    width = store.width
    for rank in range(3):
        first, num_hot, base, *_ = private.of(rank)
        assert num_hot == 20
        own = store.table[first * width : (first + 21) * width].reshape(21, width)
        assert (own == 7).all()
        own += 10**rank
        assert (base[: 21 * width] == 7).all()
    private.settle(store, 0)
    assert (store.states[:20] == 118).all()
    assert (store.states[20:100] == 7).all()
    assert (store.states[100] == 118).all()
    before = store.table.copy()
    private.settle(store, 0)
    assert np.array_equal(store.table, before)


@pytest.mark.parametrize("num_hot", [1, 15, 16, 16_384])
def test_copies_are_named_by_the_integers_of_keys_or_not_at_all(num_hot: int) -> None:
    """The last row that loops may name is below the most that 32 bits hold."""
    for features in (1_000, 2**32 - 1 - 17 * 16_384, 2**32 - 1 - 17 * (num_hot + 64), 2**32 - 2):
        table = TableLayout(features, layout().groups)
        named = PrivateCopies(table, 16, num_hot).of(15)
        last = named.first + num_hot
        assert not PrivateCopies.can_be_named(table, 16, num_hot) or last < 2**32
    assert PrivateCopies.can_be_named(layout(), 16, num_hot)
    assert not PrivateCopies.can_be_named(TableLayout(2**32 - 2, layout().groups), 16, num_hot)


def test_private_parts_do_not_share_cache_lines_with_each_other() -> None:
    """16 weights fill a line, so 16 keys between two parts keep them apart wherever the array begins."""
    private = PrivateCopies(layout(), num_workers=4, num_hot=15)
    firsts = [private.of(rank).first for rank in range(4)]
    assert all(b - a >= 16 + 16 for a, b in pairwise(firsts))
    assert firsts[0] > 100


def test_a_model_that_does_not_fit_in_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"1,000,000,000,000 features needs 8,?000\.0 GB") as error:
        KeyedStore(layout("adagrad", 10**12))
    assert "--hash-bits" in error.value.hint


def test_initial_values_are_drawn_from_the_seed_and_the_key_alone() -> None:
    whole = KeyedStore(two_groups())
    for num_shards in (2, 3):
        parts = [KeyedStore(two_groups(), shard, num_shards) for shard in range(num_shards)]
        for shard, part in enumerate(parts):
            assert np.array_equal(part.states, whole.states[shard::num_shards])
    assert np.array_equal(KeyedStore(two_groups()).states, whole.states)
    assert not np.array_equal(KeyedStore(two_groups(seed=4)).states, whole.states)
    values = whole.read(0, 300, 0).reshape(300, 5)
    assert (values[:, 0] == 0).all()
    assert values[:, 1:].mean() == pytest.approx(0, abs=0.01)
    assert values[:, 1:].std() == pytest.approx(0.1, rel=0.1)
    assert (whole.states[300] == 0).all(), "the bias begins as 0"


@pytest.mark.parametrize("num_shards", [1, 2, 3])
@pytest.mark.parametrize("hot", [[299, 5, 0, 17], [3, 2, 1, 0], [*range(299, -1, -1)]])
def test_initial_values_belong_to_the_keys_of_the_input(hot: list[int], num_shards: int) -> None:
    """Whichever keys are hot, and first in the blocks."""
    by_input_key = KeyedStore(two_groups()).states
    expected = KeyOrder(np.array(hot, np.uint64)).to_blocks(by_input_key.copy())
    assert not np.array_equal(expected, by_input_key)
    for shard in range(num_shards):
        store = KeyedStore(two_groups(), shard, num_shards, hot_keys=hot)
        assert np.array_equal(store.states, expected[shard::num_shards])
        store.states[:] = 1
        store.begin()
        assert np.array_equal(store.states, expected[shard::num_shards])


@pytest.mark.parametrize("threads", [2, 5])
def test_initial_values_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    hot = [299, 5, 0, 17]
    expected = KeyedStore(two_groups(), 1, 2, hot_keys=hot).states
    monkeypatch.setattr(keyed, "num_cores", lambda: threads)
    monkeypatch.setattr(keyed, "VALUES_PER_THREAD", 4)
    assert np.array_equal(KeyedStore(two_groups(), 1, 2, hot_keys=hot).states, expected)


def test_uniform_initial_values_stay_within_their_scale() -> None:
    group = Group("factors", 3, OptimizerConfig(name="sgd"), Initial("uniform", 0.25))
    values = KeyedStore(TableLayout(2_000, (group,), bias=False)).read(0, 2_000, 0)
    assert np.abs(values).max() <= 0.25
    assert values.std() == pytest.approx(0.25 / 3**0.5, rel=0.05)
    assert len(np.unique(values)) > 5_900


def test_each_group_follows_its_own_optimizer() -> None:
    """A table of two groups updates each of them as a table of that group alone does."""
    layout = two_groups()
    both, alone = KeyedStore(layout), [KeyedStore(TableLayout(300, (group,), seed=3)) for group in layout.groups]
    begins = both.read(0, 301, 0).reshape(301, 5)
    for store, columns in zip(alone, (begins[:, :1], begins[:, 1:]), strict=True):
        store.states[:, : columns.shape[1]] = columns
    chance = np.random.default_rng(1)
    for _ in range(5):
        keys = chance.permutation(301)[:40].astype(np.uint32)
        sums = chance.standard_normal((40, 5)).astype(np.float32)
        both.apply(keys, sums.ravel(), 7, 0)
        for store, columns in zip(alone, (sums[:, :1], sums[:, 1:]), strict=True):
            store.apply(keys, np.ascontiguousarray(columns).ravel(), 7, 0)
    found = both.read(0, 301, 0).reshape(301, 5)
    assert np.array_equal(found[:, :1], alone[0].read(0, 301, 0).reshape(301, 1))
    assert np.array_equal(found[:, 1:], alone[1].read(0, 301, 0).reshape(301, 4))
    gathered = np.zeros(3 * 5, np.float32)
    both.gather(np.array([300, 5, 7], np.uint32), gathered)
    assert np.array_equal(gathered.reshape(3, 5), found[[300, 5, 7]])
