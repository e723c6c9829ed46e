"""A model's values as tensors are what they are as arrays: the same updates, states and rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
import torch
from paceline.config import OptimizerConfig, RunConfig
from paceline.data.datasets import open_for
from paceline.data.images.dataset import ImageDataset, ImageReader
from paceline.data.rows import EpochOrder
from paceline.models.dense import build_model
from paceline.parameters.optimizers.dense import UpdateCount
from paceline.torch.table import TorchTable, resident_readers
from paceline.training.embedded.dense import DenseTable

NORMALISED = "tests.models.modules:normalised"
OPTIMIZERS: list[dict[str, Any]] = [
    {"name": "sgd"}, {"name": "sgd", "momentum": 0.9, "decay_rows": 50}, {"name": "adagrad"}, {"name": "adam"},
]  # fmt: skip


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_updates_are_the_same(drawings: Path, optimizer: dict[str, Any], l2: float) -> None:
    settings = OptimizerConfig(**optimizer, learning_rate=0.05, l2=l2)
    config = RunConfig(data=str(drawings), model=NORMALISED, optimizer=settings, batch_size=10)
    dataset = open_for(config)
    assert isinstance(dataset, ImageDataset)
    model = build_model(config, dataset.shape, dataset.classes)
    arrays, tensors = DenseTable(config, model, 1_500, 1), TorchTable(config, model, UpdateCount(1_500, 10))
    chance = np.random.default_rng(0)
    for table in (arrays, tensors):
        table.begin(model.initial(0))
    for update in range(5):
        sums = chance.standard_normal(len(arrays.values)).astype(np.float32)
        arrays.apply(sums, 10, 10 * update, 0, len(sums))
        half = len(sums) // 2
        for first, stop in ((0, half), (half, len(sums))):
            tensors.apply(torch.from_numpy(sums), 10, 10 * update, first, stop)
    np.testing.assert_allclose(tensors.states, arrays.states, rtol=1e-4, atol=1e-6)
    again = TorchTable(config, model, UpdateCount(1_500, 10))
    again.load(arrays.states)
    np.testing.assert_array_equal(again.copy_of_values(), arrays.copy_of_values())
    # Piece by piece, as over a wire.
    for source, target in ((arrays, again), (again, arrays)):
        target.begin(model.initial(1))
        for start in range(0, len(arrays.values), 100):
            target.load(source.part(start, start + 100), start)
        np.testing.assert_array_equal(target.states, source.states)


def test_rows_that_lie_together_are_read_in_the_same_order(drawings: Path) -> None:
    dataset = open_for(RunConfig(data=str(drawings), model="softmax"))
    assert isinstance(dataset, ImageDataset)
    order = EpochOrder([block.rows for block in dataset.split("train").blocks], 3)
    readers, theirs = resident_readers(dataset, order, 3, "cpu"), ImageReader(dataset, order)
    assert len(readers) == 3
    ours = readers[2]
    for start, stop in ((0, 40), (1_470, 1_500), (1_500, 1_600), (5, 5)):
        found, expected = ours.between(start, stop), theirs.between(start, stop)
        np.testing.assert_array_equal(found.pixels, expected.pixels)
        np.testing.assert_array_equal(found.labels, expected.labels)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
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
