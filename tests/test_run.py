"""A run as a whole: it learns from the first `train_rows` rows only, and continues if an older version began it."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

import paceline
from paceline.config import load_config
from paceline.errors import ConfigError, RunError, UsageError
from paceline.run import resume, train
from paceline.run_folder import RunFolder
from paceline.training.cluster.placement import engine_for
from tests.conftest import OLDER_DATA, OLDER_RUNS, Command
from tests.ray_cluster import RayCluster


@pytest.mark.parametrize("pace", ["sync", "async"])
def test_a_run_counts_the_first_rows_alone(clicks: Path, tmp_path: Path, pace: str) -> None:
    run = paceline.train(data=clicks, run=tmp_path / "run", pace=pace, train_rows=150, epochs=2, batch_size=10)
    assert run.result["rows"] == 300


def test_a_dense_model_does_too(drawings: Path, tmp_path: Path) -> None:
    run = paceline.train(data=drawings, run=tmp_path / "run", model="softmax", train_rows=30, epochs=3, batch_size=10)
    assert run.result["rows"] == 90


def test_more_rows_than_there_are(clicks: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"`train_rows` is 1,000,000,000; .* training rows"):
        paceline.train(data=clicks, run=tmp_path / "run", train_rows=10**9)
    assert not (tmp_path / "run").exists()


def continued_and_whole(name: str, data: str, folder: Path, address: str = "") -> tuple[RunFolder, RunFolder]:
    """A run of an older version that is resumed here, and one with the same settings that only this version trains."""
    shutil.copytree(OLDER_RUNS / name, folder / "begun")
    continued = resume(folder / "begun", data=str(OLDER_DATA / data), address=address)
    config = load_config(OLDER_RUNS / name / "config.toml")
    config = msgspec.structs.replace(config, data=str(OLDER_DATA / data), run=str(folder / "whole"), address=address)
    with engine_for(config) as engine:
        return continued, train(config, engine)


def assert_same(continued: RunFolder, whole: RunFolder) -> None:
    assert continued.result["status"] == "done"
    assert [line["rows"] for line in continued.metrics] == list(range(6, 49, 6))
    assert [line["test_loss"] for line in continued.metrics] == pytest.approx(
        [line["test_loss"] for line in whole.metrics], rel=1e-5
    )


@pytest.mark.filterwarnings("ignore:.*has no checksum")
@pytest.mark.parametrize(("name", "data"), [("sparse", "rows"), ("momentum", "images"), ("adam", "images")])
def test_a_run_of_an_older_version_continues(name: str, data: str, tmp_path: Path) -> None:
    assert_same(*continued_and_whole(name, data, tmp_path))


@pytest.mark.filterwarnings("ignore:.*has no checksum")
def test_a_run_of_an_older_version_continues_on_a_cluster(tmp_path: Path, ray_cluster: RayCluster) -> None:
    assert_same(*continued_and_whole("cluster", "rows", tmp_path, ray_cluster.address))


def test_a_setting_that_this_version_does_not_have(tmp_path: Path) -> None:
    shutil.copytree(OLDER_RUNS / "sparse", tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace("key_cache = false", "key_cache = true"))
    with pytest.raises(ConfigError, match=rf"unknown setting `wire.key_cache` in `{config}`") as caught:
        resume(tmp_path / "run")
    assert caught.value.hint == "use the version of paceline that made this run"


@pytest.mark.parametrize(
    ("error", "note"),
    [
        (UsageError("a file is damaged", "please report it"), "a file is damaged; please report it"),
        (RunError("the replay failed"), "the replay failed"),
        (ValueError("no such\nkey"), "ValueError: no such"),
    ],
)
def test_a_run_that_cannot_be_diagnosed_is_done(
    error: Exception, note: str, clicks: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_run: RunFolder) -> None:
        raise error

    monkeypatch.setattr("paceline.diagnosis.explain.write_diagnosis", fail)
    monkeypatch.setattr("paceline.run.SHORTEST_EXPLAINED_SECONDS", 0.0)
    done = command("train", "--data", clicks, "--run", tmp_path / "run", "--steps", "1")
    assert done.code == 0
    assert f"note: this run could not be diagnosed: {note}\n" in done.err
