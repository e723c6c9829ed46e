"""With validation rows, the best model is kept, and a run may stop when it gets no better."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.dataset import sparse_writer
from paceline.errors import ConfigError, DataError, DivergedError
from paceline.predictions import evaluate_model
from paceline.run import resume
from paceline.run_folder import RunFolder
from paceline.training.best import Best, BestModel
from tests.ray_cluster import RayCluster

SETTINGS: dict[str, Any] = {"pace": "sync", "batch_size": 10, "learning_rate": 0.3}


@pytest.fixture(scope="module")
def overfitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 training rows with 20 features, of which one matters: a model is soon too sure of the others."""
    path, rng = tmp_path_factory.mktemp("data") / "few", np.random.default_rng(2)
    with sparse_writer(path, features=20, source={}) as writer:
        for split, rows in (("train", 60), ("validation", 200), ("test", 200)):
            values = rng.normal(size=(rows, 20)).astype(np.float32)
            labels = (rng.random(rows) < 1 / (1 + np.exp(-values[:, 0]))).astype(np.uint8)
            keys = np.tile(np.arange(20, dtype=np.uint32), rows)
            writer.add(split, Batch(labels, np.arange(rows + 1) * 20, keys, values.ravel()))  # type: ignore[arg-type]
        writer.finish()
    return path


@pytest.fixture(scope="module")
def run(overfitted: Path, tmp_path_factory: pytest.TempPathFactory) -> paceline.Run:
    folder = tmp_path_factory.mktemp("runs")
    return paceline.train(data=overfitted, run=folder / "run", epochs=40, test_every=60, **SETTINGS)


def test_the_best_model_is_kept_not_the_last(run: paceline.Run, overfitted: Path) -> None:
    losses = {line["rows"]: line["validation_loss"] for line in run.metrics}
    best = min(losses, key=lambda rows: losses[rows])
    assert 0 < best < 2_400
    result = run.result
    assert result["rows"] == 2_400
    assert result["best_rows"] == best
    assert result["validation"]["loss"] == losses[best] < losses[2_400] - 0.05
    assert result["test"]["loss"] == next(line["test_loss"] for line in run.metrics if line["rows"] == best)
    _, quality = evaluate_model(run.path, overfitted, "validation")
    assert quality["loss"] == pytest.approx(losses[best], rel=1e-6)
    assert json.loads((run.path / "model" / "model.json").read_text())["sha256"] == result["model_sha256"]
    assert not list(run.path.glob("best-*"))


def test_patience_ends_a_run(run: paceline.Run, overfitted: Path, tmp_path: Path) -> None:
    stopped = paceline.train(data=overfitted, run=tmp_path / "run", early_stopping=3, **SETTINGS)
    assert stopped.config.epochs == 100
    assert stopped.config.test_every == 60
    assert stopped.result["rows"] == stopped.result["best_rows"] + 3 * 60
    assert stopped.result["model_sha256"] == run.result["model_sha256"]


def test_without_a_word_evaluations_are_spread_over_the_epochs(overfitted: Path, tmp_path: Path) -> None:
    run = paceline.train(data=overfitted, run=tmp_path / "run", epochs=60, **SETTINGS)
    assert len(run.metrics) == 20


def test_a_cluster_keeps_the_same_model(
    run: paceline.Run, overfitted: Path, tmp_path: Path, ray_cluster: RayCluster
) -> None:
    cluster = paceline.train(
        data=overfitted, run=tmp_path / "run", engine="ray", address=ray_cluster.address, workers=1, early_stopping=2,
        **SETTINGS,
    )  # fmt: skip
    assert cluster.result["model_sha256"] == run.result["model_sha256"]
    assert cluster.result["rows"] == run.result["best_rows"] + 2 * 60


@pytest.mark.parametrize("lost", ["after the best", "after the model was moved"])
def test_a_run_that_was_killed_continues_with_its_best_model(
    run: paceline.Run, overfitted: Path, tmp_path: Path, lost: str
) -> None:
    stopped = paceline.train(
        data=overfitted, run=tmp_path / "run", checkpoint_every=1e-9, epochs=40, test_every=60, **SETTINGS
    )
    folder = stopped.path
    (folder / "result.json").unlink()
    if lost == "after the best":
        (folder / "model").rename(folder / f"best-{run.result['best_rows']}")
    again = resume(folder, notice=lambda _: None)
    assert again.result["model_sha256"] == run.result["model_sha256"]
    assert again.result["best_rows"] == run.result["best_rows"]
    assert paceline.load(folder).info.sha256 == run.result["model_sha256"]


def test_a_better_model_replaces_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "config.toml").touch()
    best = BestModel(RunFolder(tmp_path))

    def save(folder: Path) -> str:
        folder.mkdir()
        return "sum"

    for rows, loss in ((10, 0.5), (20, 0.7), (30, 0.4), (40, 0.4)):
        if best.is_beaten(rows, loss):
            best.keep(Best(rows=rows, validation={"loss": loss}, test={}), save)
    assert best.later == 1
    assert [path.name for path in tmp_path.glob("best-*")] == ["best-30"]
    assert BestModel(RunFolder(tmp_path)).found == best.found
    (tmp_path / "best.json").write_text("{")
    with pytest.raises(DataError, match="broken"):
        BestModel(RunFolder(tmp_path))
    shutil.rmtree(tmp_path)


@pytest.fixture(scope="module")
def overshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Numbers that depend on the first of two keys. Steps of 0.35 are too long for the second, which tells nothing: its
    weight grows without bound once the first is learned.
    """
    path, rng = tmp_path_factory.mktemp("data") / "overshot", np.random.default_rng(0)
    with sparse_writer(path, features=2, source={}, labels="numbers") as writer:
        for split, rows in (("train", 100), ("validation", 50), ("test", 50)):
            values = (rng.normal(size=(rows, 2)) * [1, 3]).astype(np.float32)
            labels = (values[:, 0] + 0.1 * rng.normal(size=rows)).astype(np.float32)
            keys = np.tile(np.arange(2, dtype=np.uint32), rows)
            writer.add(split, Batch(labels, np.arange(rows + 1) * 2, keys, values.ravel()))  # type: ignore[arg-type]
        writer.finish()
    return path


LONG_STEPS: dict[str, Any] = {
    "pace": "sync", "workers": 1, "batch_size": 100, "optimizer": "sgd", "learning_rate": 0.3, "test_every": 100,
    "progress": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "why"),
    [({"epochs": 30}, "the run has diverged: the test loss is"),
     ({"epochs": 100, "learning_rate": 0.35}, "the loss is no longer a number")],
)  # fmt: skip
def test_a_good_model_outlives_a_late_divergence(
    overshot: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: dict[str, Any], why: str
) -> None:
    run = paceline.train(data=overshot, run=tmp_path / "run", **LONG_STEPS | settings)
    told = capsys.readouterr().err
    assert f"note: {why}" in told
    assert "a good model is kept from before" in told
    assert "worse than a constant" not in told
    result = run.result
    assert result["status"] == "done"
    assert result["diverged"].startswith(why)
    assert result["validation"]["loss"] < result["validation"]["baseline_loss"]
    assert paceline.evaluate(run, overshot, split="test")["loss"] == pytest.approx(result["test"]["loss"])
    assert not list(run.path.glob("best-*"))


def test_a_cluster_keeps_a_good_model_too(
    overshot: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], ray_cluster: RayCluster
) -> None:
    ray = {"engine": "ray", "address": ray_cluster.address, "epochs": 100, "learning_rate": 0.35}
    run = paceline.train(data=overshot, run=tmp_path / "run", **LONG_STEPS | ray)
    assert "the loss is no longer a number" in capsys.readouterr().err
    assert run.result["validation"]["loss"] < run.result["validation"]["baseline_loss"]
    assert paceline.load(run.path).info.sha256 == run.result["model_sha256"]


@pytest.mark.parametrize("rate", [0.6, 1e6])
def test_a_run_that_was_never_good_leaves_nothing(overshot: Path, tmp_path: Path, rate: float) -> None:
    with pytest.raises(DivergedError):
        paceline.train(data=overshot, run=tmp_path / "run", epochs=10, **LONG_STEPS | {"learning_rate": rate})
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert not [name for name in left if name.startswith(("best", "model"))]
    assert RunFolder(tmp_path / "run").result["status"] == "failed"


def test_the_kept_model_is_judged_not_the_last(
    overshot: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = paceline.train(data=overshot, run=tmp_path / "run", epochs=60, **LONG_STEPS | {"learning_rate": 0.25})
    last = run.metrics[-1]
    assert last["test_loss"] > last["test_baseline_loss"] > run.result["test"]["loss"]
    assert "worse than a constant" not in capsys.readouterr().err


def test_early_stopping_needs_validation_rows(clicks: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no validation rows") as failed:
        paceline.train(data=clicks, run=tmp_path / "run", early_stopping=3)
    assert "--validation-fraction" in failed.value.hint
    with pytest.raises(ConfigError, match="`early_stopping` is -1"):
        paceline.train(data=clicks, run=tmp_path / "run", early_stopping=-1)
    assert not (tmp_path / "run").exists()
