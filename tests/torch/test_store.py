"""A model's values as tensors are what they are as arrays: the same updates, states and rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
import torch
from paceline.data.blocks.reader import Reader
from paceline.data.images.dataset import ImageDataset
from paceline.data.rows import EpochOrder
from paceline.parameters.dense import DenseStore
from paceline.parameters.layout import DenseLayout
from paceline.settings import OptimizerConfig
from paceline.torch.resident import resident_reader
from paceline.torch.store import TorchStore
from tests.skips import needs_gpu

NORMALISED = "tests.models.modules:normalised"
OPTIMIZERS: list[dict[str, Any]] = [
    {"name": "sgd"}, {"name": "sgd", "own": {"momentum": 0.9}, "decay_rows": 50}, {"name": "adagrad"}, {"name": "adam"},
]  # fmt: skip


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_updates_are_the_same(optimizer: dict[str, Any], l2: float) -> None:
    settings = OptimizerConfig(**optimizer, learning_rate=0.05, l2=l2)
    layout = DenseLayout(1_000, 930, settings, epoch_rows=1_500, rows_per_update=10)
    arrays, tensors = DenseStore(layout), TorchStore(layout, "cpu")
    chance = np.random.default_rng(0)
    initial, others = chance.standard_normal((2, 1_000)).astype(np.float32)
    for store in (arrays, tensors):
        store.begin(initial)
    for update in range(5):
        sums = chance.standard_normal(len(arrays.values)).astype(np.float32)
        arrays.apply(0, sums, 10, 10 * update)
        half = len(sums) // 2
        for first, stop in ((0, half), (half, len(sums))):
            tensors.apply(first, torch.from_numpy(sums[first:stop].copy()), 10, 10 * update)
    np.testing.assert_allclose(tensors.states, arrays.states, rtol=1e-4, atol=1e-6)
    again = TorchStore(layout, "cpu")
    again.load(0, arrays.states)
    np.testing.assert_array_equal(again.read(0, 1_000, 0), arrays.read(0, 1_000, 0))
    # Piece by piece, as over a wire.
    for source, target in ((arrays, again), (again, arrays)):
        target.begin(others)
        for start in range(0, len(arrays.values), 100):
            target.load(start, source.part(start, start + 100))
        np.testing.assert_array_equal(target.states, source.states)


def test_rows_that_lie_together_are_read_in_the_same_order(drawings: Path) -> None:
    dataset = ImageDataset(drawings)
    order = EpochOrder([block.rows for block in dataset.split("train").blocks], 3)
    ours, theirs = resident_reader(dataset, order, "cpu"), Reader(dataset, order)
    for start, stop in ((0, 40), (1_470, 1_500), (1_500, 1_600), (5, 5)):
        found, expected = ours.between(start, stop), theirs.between(start, stop)
        np.testing.assert_array_equal(found.pixels, expected.pixels)
        np.testing.assert_array_equal(found.labels, expected.labels)


@needs_gpu
@pytest.mark.parametrize("pace", ["sync", "async"])
@pytest.mark.parametrize("crop", [0, 10])
def test_training_on_a_gpu(drawings: Path, tmp_path: Path, pace: str, crop: int) -> None:
    flags: dict[str, Any] = {"data": drawings, "model": NORMALISED, "batch_size": 30, "epochs": 4, "optimizer": "adam",
                             "learning_rate": 0.003, "workers": 2, "pace": pace, "test_every": 1_500,
                             "settings": [f"images.crop={crop}"]}  # fmt: skip
    on_gpu = paceline.train(run=tmp_path / "gpu", device="cuda", **flags)
    on_cpu = paceline.train(run=tmp_path / "cpu", **flags)
    assert on_gpu.result["device"] == "cuda"
    assert on_gpu.result["test"]["loss"] == pytest.approx(on_cpu.result["test"]["loss"], abs=0.1)
