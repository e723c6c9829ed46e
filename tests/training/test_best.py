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
from paceline.errors import ConfigError, DataError
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


def test_early_stopping_needs_validation_rows(clicks: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no validation rows") as failed:
        paceline.train(data=clicks, run=tmp_path / "run", early_stopping=3)
    assert "--validation-fraction" in failed.value.hint
    with pytest.raises(ConfigError, match="`early_stopping` is -1"):
        paceline.train(data=clicks, run=tmp_path / "run", early_stopping=-1)
    assert not (tmp_path / "run").exists()
