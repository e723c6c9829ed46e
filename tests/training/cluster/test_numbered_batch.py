"""A batch's keys go to the shards that hold them, and values and gradients come back to the right keys."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paceline.data.sparse.batch import Batch
from paceline.models.model import Step
from paceline.parameters.layout import DenseLayout, Group, Layout, TableLayout
from paceline.parameters.parts import DENSE, Part
from paceline.parameters.scratch import Scratch
from paceline.settings import OptimizerConfig
from paceline.training.cluster.numbered_batch import NumberedBatch
from paceline.wire.frames import BadFrameError

FEATURES, ROWS, SGD = 40, 6, OptimizerConfig(name="sgd")


class Rows:
    """A reader of random rows."""

    def between(self, start: int, stop: int) -> Batch:
        chance = np.random.default_rng(start)
        offsets = np.arange(0, 4 * (stop - start) + 1, 4)
        keys = chance.integers(0, FEATURES, offsets[-1]).astype(np.uint32)
        return Batch(np.zeros(stop - start, np.uint8), offsets, keys, np.ones(len(keys), np.float32))


class Doubling:
    """A gradient that is twice what was pulled, and remembers the step."""

    def gradient(self, step: Step) -> float:
        self.step = step
        step.sums[:] = 2 * step.weights
        if step.dense is not None:
            step.dense_sums[:] = 2 * step.dense
        return 1.5


@pytest.mark.parametrize("num_dense", [0, 5])
@pytest.mark.parametrize("dim", [1, 3])
@pytest.mark.parametrize("ascending", [False, True])
@pytest.mark.parametrize("num_shards", [1, 2, 3])
@pytest.mark.parametrize("pulls_all", [False, True])
def test_values_reach_their_keys_and_gradients_their_shards(
    num_shards: int, ascending: bool, dim: int, num_dense: int, pulls_all: bool
) -> None:
    table = TableLayout(FEATURES, (Group("weight", dim, SGD),))
    dense = DenseLayout(num_dense, num_dense, SGD) if num_dense else None
    model: Any = SimpleNamespace(layout=Layout(table, dense), make_kernel=None)
    compute: Any = Doubling()
    reader: Any = Rows()
    batch = NumberedBatch(reader, model, compute, Scratch(table), 1, num_shards, ascending)
    values = np.arange((FEATURES + 1) * dim, dtype=np.float32).reshape(-1, dim)
    dense_values = -1 - np.arange(num_dense, dtype=np.float32)
    ranges = [Part(DENSE, num_dense, 1, 1, num_shards).of(shard) for shard in range(num_shards)]
    for start in (0, ROWS, 0):
        assert batch.read(lambda: 5, 7, start, start + ROWS, 3) == 5
        own = []
        for shard in range(num_shards):
            held, keys = values[shard::num_shards], batch.indices(shard)
            assert not ascending or (np.diff(keys.astype(np.int64)) > 0).all()
            own.append(np.concatenate([held[keys].ravel(), dense_values[ranges[shard]]]))
            assert batch.num_values(shard) == len(own[-1])
            everything = np.concatenate([held.ravel(), dense_values[ranges[shard]]])
            batch.put(shard, batch.pick_from(shard, everything) if pulls_all else own[-1])
        assert batch.gradient() == 1.5
        step: Step = compute.step
        assert step.turn == (1, start)
        # What each nonzero got is the value of its key.
        assert np.array_equal(step.weights.reshape(-1, dim)[step.local[: 4 * ROWS]], values[batch.rows.keys])
        for shard in range(num_shards):
            assert np.array_equal(batch.pick(shard), 2 * own[shard])


def test_a_batch_without_rows_needs_no_keys() -> None:
    table = TableLayout(FEATURES, (Group("weight", 1, SGD),))
    model: Any = SimpleNamespace(layout=Layout(table), make_kernel=None)
    reader: Any = Rows()
    batch = NumberedBatch(reader, model, Doubling(), Scratch(table), 0, 2, False)  # type: ignore[arg-type]
    batch.read(lambda: 5, 1, 0, ROWS, 0)
    batch.read(lambda: 5, 2, 0, 0, 0)
    assert [len(batch.indices(shard)) for shard in (0, 1)] == [0, 0]
    assert [len(batch.pick(shard)) for shard in (0, 1)] == [0, 0]


@pytest.mark.parametrize("count", [0, 1, FEATURES // 2, FEATURES + 2])
def test_a_shard_that_sends_another_number_of_values_is_refused(count: int) -> None:
    table = TableLayout(FEATURES, (Group("weight", 1, SGD),))
    model: Any = SimpleNamespace(layout=Layout(table, None), make_kernel=None)
    reader: Any = Rows()
    compute: Any = Doubling()
    batch = NumberedBatch(reader, model, compute, Scratch(table), 0, 2, False)
    batch.read(lambda: 0, 1, 0, ROWS, 0)
    with pytest.raises(BadFrameError, match=f"{count} values of 21 keys"):
        batch.pick_from(0, np.zeros(count, np.float32))
