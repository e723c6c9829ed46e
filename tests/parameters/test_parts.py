"""Every parameter belongs to one shard, and the shards get about equally many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.parameters.keyed import KeyedStore
from paceline.parameters.layout import DenseLayout, Group, Layout, TableLayout
from paceline.parameters.parts import DENSE, TABLE, Part, parts_of
from paceline.settings import OptimizerConfig

ADAM = OptimizerConfig(name="adam")
WEIGHTS = TableLayout(20, (Group("weights", 3, ADAM),))
TENSORS = DenseLayout(11, 11, ADAM)


@given(size=st.integers(0, 500), num_shards=st.integers(1, 40), in_ranges=st.booleans())
def test_every_index_is_in_one_part(size: int, num_shards: int, in_ranges: bool) -> None:
    part = Part("any", size, 1, 1, num_shards, in_ranges)
    owners = np.zeros(size, int)
    for shard in range(num_shards):
        owners[part.of(shard)] += 1
    assert owners.tolist() == [1] * size
    sizes = [part.size_of(shard) for shard in range(num_shards)]
    assert sizes == [len(np.arange(size)[part.of(shard)]) for shard in range(num_shards)]
    assert sum(sizes) == size
    assert max(sizes) - min(sizes) <= 1


@given(size=st.integers(1, 500), num_shards=st.integers(1, 40))
def test_hot_keys_are_spread_and_dense_values_stay_together(size: int, num_shards: int) -> None:
    keys, values = Part(TABLE, size, 1, 1, num_shards, in_ranges=False), Part(DENSE, size, 1, 1, num_shards)
    everything = np.arange(size)
    hottest = [everything[keys.of(shard)][:1].tolist() for shard in range(min(size, num_shards))]
    assert hottest == [[shard] for shard in range(min(size, num_shards))]
    assert np.concatenate([everything[values.of(shard)] for shard in range(num_shards)]).tolist() == everything.tolist()


@pytest.mark.parametrize(
    ("layout", "names"),
    [(Layout(WEIGHTS), [TABLE]), (Layout(None, TENSORS), [DENSE]), (Layout(WEIGHTS, TENSORS), [TABLE, DENSE])],
)
def test_a_part_for_each_kind_of_parameters(layout: Layout, names: list[str]) -> None:
    assert [part.name for part in parts_of(layout, 2)] == names


def test_the_bias_is_dealt_out_and_states_have_what_the_optimizer_remembers() -> None:
    table, dense = parts_of(Layout(WEIGHTS, TENSORS), 2)
    assert (table.size, table.dim, table.width) == (21, 3, 9)
    assert (dense.size, dense.dim, dense.width) == (11, 1, 3)


@pytest.mark.parametrize("num_shards", [1, 2, 3, 21])
def test_a_shard_has_room_for_its_part(num_shards: int) -> None:
    (part,) = parts_of(Layout(WEIGHTS), num_shards)
    stores: list[Any] = [KeyedStore(WEIGHTS, shard, num_shards) for shard in range(num_shards)]
    assert [store.states.shape for store in stores] == [
        (part.size_of(shard), part.width) for shard in range(num_shards)
    ]
    # The last key is the bias: the shard whose part has it knows where.
    with_bias = [shard for shard, store in enumerate(stores) if store.bias >= 0]
    assert [np.arange(part.size)[part.of(shard)][stores[shard].bias] for shard in with_bias] == [WEIGHTS.bias_key]
