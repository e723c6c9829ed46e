"""PyTorch's modules as dense models: values as views, gradients as sums, buffers that follow, bad ones refused."""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import paceline
import torch
from paceline.data.blocks.reader import Reader
from paceline.data.datasets import open_dataset
from paceline.data.images.blocks import Images
from paceline.data.images.dataset import ImageDataset
from paceline.data.rows import EpochOrder
from paceline.errors import ConfigError
from paceline.models.images import ImageSettings
from paceline.models.model import Step
from paceline.models.registry import find
from paceline.settings import ImageConfig, RunConfig
from paceline.torch.alexnet import alexnet
from paceline.torch.model import TorchModel
from tests.conftest import Command
from tests.models import modules
from tests.skips import needs_no_gpu

SHAPE = (12, 12, 1)


def build(name: str, **flags: Any) -> TorchModel:
    config = RunConfig(data="-", model=f"tests.models.modules:{name}", **flags)
    settings = ImageSettings(shape=SHAPE, classes=4, class_names=list("abcd"), images=ImageConfig())
    return TorchModel(find(config.model), config, settings)


def some_images(rows: int = 10) -> Images:
    chance = np.random.default_rng(0)
    labels = chance.integers(0, 4, rows).astype(np.uint16)
    return Images(chance.integers(0, 256, (rows, 144), dtype=np.uint8), labels)


def test_alexnet_is_as_large_as_it_should_be() -> None:
    assert sum(p.numel() for p in alexnet((224, 224, 3), 1000).parameters()) == 61_100_840


@pytest.mark.parametrize("name", ["plain", "with_loss"])
def test_the_gradient_is_pytorchs(name: str) -> None:
    model, images = build(name, seed=3), some_images()
    values = model.initial().copy()
    sums = np.full_like(values, 7)
    losses = model.gradient(Step(images, (0, 0), dense=values, dense_sums=sums))
    torch.manual_seed(3)
    built = getattr(modules, name)(SHAPE, 4)
    module, loss = built if isinstance(built, tuple) else (built, torch.nn.functional.cross_entropy)
    inputs = torch.from_numpy(images.pixels.reshape(-1, 1, 12, 12)).float() / 255
    mean = loss(module(inputs), torch.from_numpy(images.labels.astype(np.int64)))
    mean.backward()
    assert losses == pytest.approx(10 * float(mean.detach()), rel=1e-6)
    # Its first values are not kept, and still the same when they are asked for again.
    np.testing.assert_array_equal(model.initial(), values)
    assert model.tensors
    for (found_name, parameter), tensor in zip(module.named_parameters(), model.tensors, strict=True):
        assert tensor.name == found_name
        np.testing.assert_array_equal(tensor.of(values), parameter.detach().numpy())
        assert parameter.grad is not None
        np.testing.assert_allclose(tensor.of(sums), 10 * parameter.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_a_model_that_nobody_uses_lets_go_of_the_values() -> None:
    """At once: the next run in this process needs the memory."""
    model = build("plain")
    values = model.initial()
    model.gradient(Step(some_images(), (0, 0), dense=values, dense_sums=np.zeros_like(values)))
    held = weakref.ref(values)
    del values
    gc.disable()
    try:
        assert held() is not None, "the module's parameters are views of the values"
        del model
        assert held() is None
    finally:
        gc.enable()


def test_averages_follow_what_the_rows_had() -> None:
    model, images = build("normalised"), some_images()
    values = model.initial().copy()
    sums = np.zeros_like(values)
    model.gradient(Step(images, (0, 0), dense=values, dense_sums=sums))
    names = [tensor.name for tensor in model.tensors]
    assert names[-3:] == ["1.running_mean", "1.running_var", "1.num_batches_tracked"]
    assert model.num_trained == model.tensors[-3].start
    after = values[model.num_trained :] - sums[model.num_trained :] / 10
    module = modules.normalised(SHAPE, 4)
    with torch.no_grad():
        for (_, parameter), tensor in zip(module.named_parameters(), model.tensors, strict=False):
            parameter.copy_(torch.from_numpy(tensor.of(values)))
    module.train()
    module(torch.from_numpy(images.pixels.reshape(-1, 1, 12, 12)).float() / 255)
    expected = [buffer.float().numpy().ravel() for _, buffer in module.named_buffers()]
    np.testing.assert_allclose(after, np.concatenate(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pace", ["async", 4])
def test_averages_do_not_run_away_from_many_workers(pace: Any) -> None:
    """However many move them from the same place, together they move them as far as one does."""
    images = some_images()
    alone, many = build("normalised"), build("normalised", workers=32, pace=pace)
    values = alone.initial().copy()
    expected, sums = np.zeros_like(values), np.zeros_like(values)
    alone.gradient(Step(images, (0, 0), dense=values, dense_sums=expected))
    many.gradient(Step(images, (0, 0), dense=values, dense_sums=sums))
    averages = slice(alone.num_trained, alone.tensors[-1].start)
    np.testing.assert_allclose(32 * sums[averages], expected[averages], rtol=1e-5)
    # Batches are counted, no matter which worker had them.
    assert sums[-1] == expected[-1] == -10


def test_the_test_loss_is_the_modules_own() -> None:
    images, own, plain = some_images(), build("with_loss"), build("plain")
    values = own.initial().copy()
    scores = own.scores(values, images)
    labels = torch.from_numpy(images.labels.astype(np.int64))
    for model, loss in ((own, torch.nn.CrossEntropyLoss(label_smoothing=0.1)), (plain, torch.nn.CrossEntropyLoss())):
        mean = float(loss(torch.from_numpy(scores), labels))
        assert model.losses(scores, images.labels) == pytest.approx(10 * mean, rel=1e-5)


def test_a_loss_that_fails_in_tests_alone() -> None:
    model, images = build("picky_loss"), some_images()
    values = model.initial().copy()
    model.gradient(Step(images, (0, 0), dense=values, dense_sums=np.empty_like(values)))
    with pytest.raises(ConfigError, match="fails in an evaluation, with 3 rows: RuntimeError: ten rows, please"):
        model.losses(model.scores(values, some_images(3)), some_images(3).labels)


def test_what_is_frozen_or_infinite_stays_as_it_is(drawings: Path, tmp_path: Path) -> None:
    run = paceline.train(
        data=drawings, model="tests.models.modules:partly_frozen", epochs=1, optimizer="sgd", learning_rate=0.1,
        momentum=0.9, l2=0.1, run=tmp_path / "run",
    )  # fmt: skip
    torch.manual_seed(0)
    module = modules.partly_frozen(SHAPE, 4)
    found = safetensors.numpy.load_file(run.path / "model" / "model.safetensors")
    np.testing.assert_array_equal(found["frozen.weight"], module.state_dict()["frozen.weight"].numpy())
    assert np.isneginf(found["mask"]).all()
    assert not np.array_equal(found["last.weight"], module.state_dict()["last.weight"].numpy())


def test_what_is_random_follows_from_the_turn() -> None:
    model, images = build("with_dropout"), some_images()
    values = model.initial().copy()
    found = [
        model.gradient(Step(images, turn, dense=values, dense_sums=np.empty_like(values)))
        for turn in [(0, 5), (1, 5), (0, 6), (0, 5)]
    ]
    assert found[0] == found[3]
    assert len({found[0], found[1], found[2]}) == 3


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_module", "returned a int, expected a torch.nn.Module"),
        ("for_ten", "turns an image into (1, 10); the data has 4 classes"),
        ("five_numbers", "does not take images of 12 × 12 pixels"),
        ("missing", "`tests.models.modules` has no `missing`"),
        ("raising", "fails: ValueError: no such luck"),
        ("nothing_to_train", "has no parameters to train"),
    ],
)
def test_modules_that_do_not_fit(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("(", "\\(").replace(")", "\\)")):
        build(name)


@needs_no_gpu
def test_no_gpu_here(command: Command, drawings: Path, tmp_path: Path) -> None:
    done = command("train", "--data", drawings, "--model", "alexnet-small", "--device", "cuda", "--run", tmp_path / "r")
    assert done.code == 2
    assert "`device` is `cuda`, but PyTorch finds no GPU here" in done.err


def test_without_pytorch(command: Command, drawings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "paceline.torch.model")
    done = command("train", "--data", drawings, "--model", "alexnet-small", "--run", tmp_path / "run")
    assert done.code == 2
    assert "this model needs PyTorch, which is not installed" in done.err
    assert "pip install 'paceline[torch]'" in done.err


@pytest.mark.parametrize("optimizer", [("sgd", 0.0), ("sgd", 0.9), ("adagrad", 0.0), ("adam", 0.0)])
def test_training_is_that_of_a_plain_loop(drawings: Path, tmp_path: Path, optimizer: tuple[str, float]) -> None:
    """The same rows in the same order, in PyTorch's own words."""
    name, momentum = optimizer
    run = paceline.train(
        data=drawings, model="tests.models.modules:plain", workers=2, batch_size=100, epochs=2, optimizer=name,
        momentum=momentum, l2=0.01, learning_rate=0.01, seed=2, run=tmp_path / "run",
    )  # fmt: skip
    torch.manual_seed(2)
    module = modules.plain(SHAPE, 4)
    decay: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.01}
    step = {
        "sgd": lambda: torch.optim.SGD(module.parameters(), momentum=momentum, **decay),
        "adagrad": lambda: torch.optim.Adagrad(module.parameters(), eps=1e-6, **decay),
        "adam": lambda: torch.optim.Adam(module.parameters(), eps=1e-6, **decay),
    }[name]()
    dataset = open_dataset(drawings)
    assert isinstance(dataset, ImageDataset)
    reader = Reader(dataset, EpochOrder([block.rows for block in dataset.split("train").blocks], 2))
    # Seven clocks of 200 rows and one of 100, twice.
    starts = [epoch * 1_500 + start for epoch in (0, 1) for start in range(0, 1_500, 200)]
    for start in starts:
        rows = reader.between(start, min(start + 200, (start // 1_500 + 1) * 1_500))
        step.zero_grad()
        inputs = torch.from_numpy(rows.pixels.reshape(-1, 1, 12, 12)).float() / 255
        torch.nn.functional.cross_entropy(module(inputs), torch.from_numpy(rows.labels.astype(np.int64))).backward()
        step.step()
    found = safetensors.numpy.load_file(run.path / "model" / "model.safetensors")
    assert found.keys() == module.state_dict().keys() != set()
    for tensor_name, tensor in module.state_dict().items():
        np.testing.assert_allclose(found[tensor_name], tensor.numpy(), rtol=2e-3, atol=2e-5)


def test_a_model_loads_into_plain_pytorch(drawings: Path, tmp_path: Path) -> None:
    run = paceline.train(
        data=drawings, model="tests.models.modules:normalised", workers=2, batch_size=20, epochs=2, optimizer="sgd",
        learning_rate=0.05, pace=2, run=tmp_path / "run",
    )  # fmt: skip
    module = modules.normalised(SHAPE, 4)
    found = safetensors.numpy.load_file(run.path / "model" / "model.safetensors")
    module.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in found.items()})
    assert found["1.num_batches_tracked"].dtype == np.int64
    module.eval()
    dataset = open_dataset(drawings)
    assert isinstance(dataset, ImageDataset)
    images = dataset.block("test", 0)
    with torch.no_grad():
        expected = module(torch.from_numpy(images.pixels.reshape(-1, 1, 12, 12).copy()).float() / 255).softmax(1)
    model = paceline.load(run.path, allow_code=True)
    np.testing.assert_allclose(model.predict_proba(images), expected.numpy(), atol=1e-5)
    assert model.predict_proba(np.zeros((0, 12, 12), np.uint8)).shape == (0, 4)


def test_a_tensor_with_two_names_has_both_when_saved(drawings: Path, tmp_path: Path) -> None:
    run = paceline.train(data=drawings, model="tests.models.modules:tied", batch_size=50, epochs=1, optimizer="sgd",
                         learning_rate=0.05, run=tmp_path / "run")  # fmt: skip
    found = safetensors.numpy.load_file(run.path / "model" / "model.safetensors")
    module = modules.tied(4)
    module.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in found.items()})
    np.testing.assert_array_equal(found["first.weight"], found["second.weight"])
    assert paceline.load(run.path, allow_code=True).predict_proba(open_dataset(drawings).block("test", 0)).shape == (
        500,
        4,
    )


@pytest.mark.parametrize("batch_size", [41, 55, 110])
def test_what_was_counted_is_a_whole_number(drawings: Path, tmp_path: Path, batch_size: int) -> None:
    """A mean over this many rows is not exact, but a model that was saved can be loaded."""
    run = paceline.train(data=drawings, model="tests.models.modules:normalised", batch_size=batch_size, steps=1,
                         optimizer="sgd", run=tmp_path / "run")  # fmt: skip
    found = safetensors.numpy.load_file(run.path / "model" / "model.safetensors")
    assert found["1.num_batches_tracked"] == 1
    paceline.load(run.path, allow_code=True)


def test_a_trained_module_scores_on_the_device_that_is_asked_for(
    drawings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the machine has: the device that the module and its values are brought to is the CPU here."""
    own = "tests.models.modules:normalised"
    run = paceline.train(
        data=drawings, model=own, epochs=1, optimizer="sgd", train_rows=300, run=tmp_path / "run", progress=False
    )
    expected = paceline.evaluate(run, drawings, model=own)
    asked: list[str] = []

    def device(name: str) -> Any:
        asked.append(name)
        return torch.device("cpu")

    monkeypatch.setattr("paceline.torch.model._device", device)
    assert paceline.evaluate(run, drawings, model=own, device="cuda") == expected
    assert paceline.predict(run, drawings, tmp_path / "out.csv", model=own, device="cuda") == 500
    assert asked.count("cuda") == 4  # the module and its values, twice


@needs_no_gpu
def test_no_gpu_to_score_on(command: Command, drawings: Path, tmp_path: Path) -> None:
    run = paceline.train(
        data=drawings, model="tests.models.modules:plain", epochs=1, optimizer="sgd", train_rows=100,
        run=tmp_path / "run", progress=False,
    )  # fmt: skip
    done = command("evaluate", run.path, "--data", tmp_path / "none", "--model", "tests.models.modules:plain",
                   "--device", "cuda")  # fmt: skip
    assert done.code == 2
    error, hint = done.err.splitlines()
    assert error == "error: `device` is `cuda`, but PyTorch finds no GPU here"
    assert hint.startswith("hint: --device cpu")
