"""The operations that are timed one by one are those of the step: together they give its result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paceline.data.sparse.dataset import SparseDataset
from paceline.kernels.linear import gradient
from paceline.kernels.losses import measure_rows
from paceline.kernels.numbering import number_keys
from paceline.kernels.operations import scatter_rows, score_rows
from paceline.models.linear import build_for
from paceline.models.linear_operations import LinearOperations
from paceline.parameters.scratch import Scratch
from paceline.settings import RunConfig


def test_the_parts_make_the_whole(clicks: Path) -> None:
    dataset = SparseDataset(clicks)
    batch = dataset.block("train", 0)
    model = build_for(RunConfig(), dataset.features)
    assert model.layout.table is not None
    scratch = Scratch(model.layout.table)
    room = scratch.room_for(batch.num_nonzeros)
    count = number_keys(batch.keys, scratch.bias, room.slots, room.direct, room.turn, room.distinct, room.local)
    weights = np.random.default_rng(1).normal(size=count).astype(np.float32)
    whole, parts = np.zeros(count, np.float32), np.zeros(count, np.float32)
    kernel = model.make_kernel()
    losses = gradient(kernel, batch.offsets, room.local, batch.values, batch.labels, None, None, weights, whole)
    scores, slopes = np.zeros(batch.num_rows, np.float32), np.zeros(batch.num_rows, np.float32)
    score_rows(batch.offsets, room.local, batch.values, weights, scores)
    assert measure_rows(kernel.loss, scores, batch.labels, None, slopes) == pytest.approx(losses, rel=1e-4)
    scatter_rows(batch.offsets, room.local, batch.values, slopes, parts)
    np.testing.assert_allclose(parts, whole, rtol=1e-3, atol=1e-4)


def test_every_operation_says_what_it_does(clicks: Path) -> None:
    dataset = SparseDataset(clicks)
    batch = dataset.block("train", 0)
    operations = LinearOperations(build_for(RunConfig(), dataset.features), batch.num_rows)
    assert list(operations.step(batch)) == list(operations.what)
