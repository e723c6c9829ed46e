"""Dense models at every pace, on both engines: the same bits, the same update, every row once, and they learn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import paceline
from paceline.errors import DivergedError
from paceline.training.checkpoint import has_checkpoint
from tests.conftest import Command
from tests.models.modules import wider
from tests.ray_cluster import RayCluster

PLAIN = "tests.models.modules:plain"


@pytest.fixture
def train(tmp_path: Path, ray_cluster: RayCluster) -> Any:
    """Train embedded, or on the cluster with `engine="ray"`."""
    count = [0]

    def run(data: Path, engine: str = "local", **flags: Any) -> paceline.Run:
        count[0] += 1
        if engine == "ray":
            flags["address"] = ray_cluster.address
        return paceline.train(data=data, engine=engine, run=tmp_path / f"run-{count[0]}", **flags)

    return run


def tensors(run: paceline.Run) -> dict[str, Any]:
    return safetensors.numpy.load_file(run.path / "model" / "model.safetensors")


@pytest.mark.parametrize(
    ("shards", "shared_memory", "optimizer"),
    [
        (1, True, {"optimizer": "sgd"}),
        (2, True, {"optimizer": "sgd", "momentum": 0.9, "l2": 0.01}),
        (2, False, {"optimizer": "sgd", "momentum": 0.9, "l2": 0.01}),
        (3, False, {"optimizer": "adam"}),
    ],
)
def test_sync_has_the_same_bits_on_both_engines(
    train: Any, drawings: Path, shards: int, shared_memory: bool, optimizer: dict[str, Any]
) -> None:
    flags: dict[str, Any] = {
        "model": "softmax", "pace": "sync", "workers": 3, "batch_size": 44, "epochs": 2, "test_every": 700,
        "learning_rate": 0.02, "seed": 3, **optimizer,
    }  # fmt: skip
    settings = [f"wire.shared_memory={str(shared_memory).lower()}"]
    local, cluster = train(drawings, **flags), train(drawings, "ray", shards=shards, settings=settings, **flags)
    assert cluster.result["model_sha256"] == local.result["model_sha256"]
    assert cluster.result["rows"] == local.result["rows"] == 3_000
    # A gradient and the weights at every step, or hardly anything.
    large = 2 * 4 * (12 * 12 * 4 + 4) * cluster.result["steps"] * 3
    wire = cluster.result["wire"]
    assert (wire["bytes_sent"] + wire["bytes_received"] < large) == shared_memory
    assert [line["test_accuracy"] for line in cluster.metrics] == [line["test_accuracy"] for line in local.metrics]
    assert set(cluster.result) == set(local.result)


def test_workers_without_rows_in_the_last_clock(train: Any, drawings: Path) -> None:
    """Two rows are left for seven workers."""
    flags: dict[str, Any] = {
        "model": "softmax", "pace": "sync", "workers": 7, "batch_size": 107, "epochs": 2, "optimizer": "adam",
    }  # fmt: skip
    local, cluster = train(drawings, **flags), train(drawings, "ray", **flags)
    assert local.result["steps"] == 6
    assert cluster.result["model_sha256"] == local.result["model_sha256"]
    one = train(drawings, model="softmax", batch_size=749, epochs=2, optimizer="adam")
    np.testing.assert_allclose(tensors(local)["weight"], tensors(one)["weight"], atol=1e-4)


@pytest.mark.parametrize("workers", [2, 5])
def test_many_workers_do_what_one_does_with_a_larger_batch(train: Any, drawings: Path, workers: int) -> None:
    """To 1e-5 of the largest weight: sums are added in another order."""
    flags: dict[str, Any] = {
        "pace": "sync", "optimizer": "sgd", "learning_rate": 0.05, "momentum": 0.9, "epochs": 1,
    }  # fmt: skip
    for model in ("softmax", PLAIN):
        one = tensors(train(drawings, model=model, workers=1, batch_size=20 * workers, **flags))
        many = tensors(train(drawings, model=model, workers=workers, batch_size=20, **flags))
        assert many.keys() == one.keys() != set()
        for name, tensor in one.items():
            np.testing.assert_allclose(many[name], tensor, atol=1e-5 * np.abs(tensor).max())


@pytest.mark.parametrize("way", [{"shards": 2}, {"exchange": "allreduce"}])
def test_modules_on_the_cluster_do_what_they_do_embedded(train: Any, drawings: Path, way: dict[str, Any]) -> None:
    """To 1e-4 of the largest weight: processes have other numbers of threads than one."""
    flags: dict[str, Any] = {"model": PLAIN, "workers": 2, "batch_size": 40, "epochs": 1, "optimizer": "sgd",
                             "learning_rate": 0.05, "momentum": 0.9, "test_every": 600}  # fmt: skip
    local, cluster = train(drawings, **flags), train(drawings, "ray", **flags, **way)
    ours, theirs = tensors(cluster), tensors(local)
    assert ours.keys() == theirs.keys() != set()
    for name, tensor in theirs.items():
        np.testing.assert_allclose(ours[name], tensor, atol=1e-4 * np.abs(tensor).max())
    assert cluster.result["rows"] == 1_500
    assert len(local.metrics) > 1
    found, wanted = ([line["test_loss"] for line in run.metrics] for run in (cluster, local))
    assert found == pytest.approx(wanted, rel=1e-3)


def test_workers_of_one_node_share_its_cores(train: Any, drawings: Path) -> None:
    model = "tests.models.modules:half_of_the_cores"
    run = train(drawings, "ray", model=model, workers=2, batch_size=50, epochs=1, optimizer="sgd", learning_rate=0.1)
    assert run.result["rows"] == 1_500


@pytest.mark.parametrize(
    ("engine", "pace", "model"),
    [
        *(("local", pace, model) for pace in ("sync", "async", 2) for model in ("softmax", "alexnet-small")),
        ("ray", "async", "alexnet-small"),
        ("ray", 2, "softmax"),
    ],
)
def test_it_learns_at_every_pace(train: Any, drawings: Path, engine: str, pace: Any, model: str) -> None:
    how: dict[str, Any] = {
        "softmax": {"optimizer": "sgd", "momentum": 0.9, "learning_rate": 0.1},
        "alexnet-small": {"optimizer": "adam", "learning_rate": 0.003},
    }[model]
    run = train(drawings, engine, model=model, pace=pace, workers=2, batch_size=30, epochs=8, test_every=3_000, **how)
    # Guessing has a loss of log 4 = 1.386.
    assert run.result["test"]["loss"] < 0.7
    assert run.result["test"]["accuracy"] > 0.75
    assert run.result["rows"] == 12_000
    if pace == 2:
        assert run.result["max_staleness"] <= 2


@pytest.mark.parametrize("pace", ["async", 2])
def test_checkpoints_do_not_stop_workers_that_push_to_several_shards(train: Any, drawings: Path, pace: Any) -> None:
    """A shard takes no pushes while it is saved; another may have told the same worker to push."""
    run = train(
        drawings, "ray", model="softmax", pace=pace, workers=3, shards=3, batch_size=4, epochs=3, optimizer="sgd",
        learning_rate=0.05, checkpoint_every=0.01, settings=["wire.shared_memory=false"],
    )  # fmt: skip
    assert run.result["rows"] == 3 * 1_500
    assert has_checkpoint(run.path / "checkpoints")


@pytest.mark.parametrize("pace", ["sync", "async"])
def test_interrupted_and_resumed(
    train: Any, drawings: Path, pace: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints hold all that the rest depends on: in sync the bits are those of an undisturbed run."""
    flags: dict[str, Any] = {"model": PLAIN, "pace": pace, "workers": 2, "batch_size": 25, "optimizer": "adam",
                             "learning_rate": 0.003}  # fmt: skip
    monkeypatch.setattr("paceline.engines.local.POLL_SECONDS", 0.001)
    whole = train(drawings, epochs=2, **flags)
    half = train(drawings, epochs=1, checkpoint_every=1e-9, **flags)
    assert has_checkpoint(half.path / "checkpoints")
    config = (half.path / "config.toml").read_text().replace("epochs = 1\n", "epochs = 2\n")
    (half.path / "config.toml").write_text(config)
    result = json.loads((half.path / "result.json").read_text())
    (half.path / "result.json").write_text(json.dumps(result | {"status": "interrupted"}))
    assert command("resume", half.path, "--model", PLAIN).code == 0
    assert half.result["rows"] == whole.result["rows"] == 3_000
    if pace == "sync":
        assert half.result["model_sha256"] == whole.result["model_sha256"]


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_a_module_that_is_another_when_resumed(
    train: Any, drawings: Path, engine: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(drawings, engine, model=PLAIN, batch_size=25, epochs=1, checkpoint_every=1e-9)
    result = json.loads((run.path / "result.json").read_text())
    (run.path / "result.json").write_text(json.dumps(result | {"status": "interrupted"}))
    monkeypatch.setattr("tests.models.modules.plain", wider)
    done = command("resume", run.path, "--model", PLAIN)
    assert done.code == 2
    assert "made with another `module`: 4 tensors of 620 values" in done.err
    assert "now 2 tensors of 580 values" in done.err


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_a_model_that_is_not_a_number_is_not_saved(train: Any, drawings: Path, engine: str) -> None:
    with pytest.raises(DivergedError):
        train(
            drawings, engine, model="softmax", batch_size=25, steps=1, optimizer="sgd", learning_rate=3e38, test_every=0
        )


def test_evaluate_and_predict(train: Any, drawings: Path, tmp_path: Path, command: Command) -> None:
    run = train(drawings, model="softmax", epochs=3, optimizer="adagrad", learning_rate=0.1)
    done = command("evaluate", run.path, "--data", drawings, "--json")
    found = json.loads(done.out)
    assert found["rows"] == 500
    assert found["accuracy"] == pytest.approx(run.result["test"]["accuracy"])
    assert command("predict", run.path, "--data", drawings, "--out", tmp_path / "out.csv").code == 0
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[0] == '"row","label","class","probability"'
    rows = [line.split(",") for line in lines[1:]]
    assert sum(row[1] == row[2] for row in rows) / 500 == pytest.approx(found["accuracy"])


def test_images_are_cut_and_mirrored(train: Any, drawings: Path) -> None:
    run = train(
        drawings, model="softmax", epochs=4, optimizer="sgd", learning_rate=0.1,
        settings=["images.crop=10", "images.flip=true"],
    )  # fmt: skip
    assert tensors(run)["weight"].shape == (100, 4)
    again = train(
        drawings, model="softmax", epochs=4, optimizer="sgd", learning_rate=0.1,
        settings=["images.crop=10", "images.flip=true"],
    )  # fmt: skip
    assert again.result["model_sha256"] == run.result["model_sha256"]
    assert paceline.load(run.path).predict_proba(np.zeros((3, 12, 12), np.uint8)).shape == (3, 4)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"model": "logistic"}, "the model `logistic` learns from rows of features"),
        ({"model": "softmax", "optimizer": "ftrl"}, "`optimizer` is `ftrl`, which cannot train the model `softmax`"),
        ({"model": "softmax", "exchange": "allreduce"}, "`exchange` is `allreduce`; the model `softmax` takes shard"),
        ({"model": "alexnet-small", "exchange": "allreduce"}, "the engine `local` has only one"),
        ({"model": "alexnet-small", "engine": "ray", "exchange": "allreduce", "pace": "async"}, "but the pace is"),
        ({"model": "softmax", "device": "cuda"}, "`device` is `cuda`; the model `softmax` takes cpu"),
        ({"model": "mine:"}, "a function is PACKAGE.MODULE:FUNCTION"),
        ({"model": "no_such_package:build"}, "`no_such_package:build` cannot be imported"),
        ({"model": "softmx"}, "did you mean `softmax`?"),
        ({"model": "softmax", "set": "images.crop=13"}, "`images.crop` is 13, but the images have 12 × 12 pixels"),
        ({"model": "softmax", "momentum": "1.5"}, "`momentum` is 1.5; it must be at least 0 and below 1"),
    ],
)
def test_what_is_refused(command: Command, drawings: Path, tmp_path: Path, flags: dict[str, str], said: str) -> None:
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    done = command("train", "--data", drawings, "--run", tmp_path / "run", "--optimizer", "sgd", *words)
    assert done.code == 2
    assert said in done.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("function", "said"),
    [("only_tested", "with 20 rows: ValueError: no gradients today"), ("loss_of_each", "RuntimeError: grad can be")],
)
def test_a_module_that_fails_in_training(
    command: Command, drawings: Path, tmp_path: Path, function: str, said: str
) -> None:
    done = command("train", "--data", drawings, "--run", tmp_path / "run", "--optimizer", "sgd", "--batch-size", "20",
                   "--model", f"tests.models.modules:{function}")  # fmt: skip
    assert done.code == 2
    assert f"error: `tests.models.modules:{function}` fails in training" in done.err
    assert said in done.err
    assert "Traceback" not in done.err


def test_a_dense_model_of_rows(command: Command, clicks: Path, tmp_path: Path) -> None:
    done = command("train", "--data", clicks, "--model", "softmax", "--optimizer", "sgd", "--run", tmp_path / "run")
    assert done.code == 2
    assert "the model `softmax` learns from images" in done.err
    assert "hint: --model linear, or" in done.err


def test_a_function_for_rows_that_declares_nothing_is_told_how(command: Command, clicks: Path, tmp_path: Path) -> None:
    done = command("train", "--data", clicks, "--model", "tests.models.modules:only_tested", "--run", tmp_path / "run")
    assert done.code == 2
    assert "if it is for rows of features, declare it with @sparse_model; else" in done.err
