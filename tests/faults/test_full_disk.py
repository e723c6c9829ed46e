"""A disk that is full while a run trains costs telemetry and checkpoints, not the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline import files
from paceline import run as runs
from paceline.config import read_config
from paceline.errors import InterruptedRunError, UsageError
from paceline.training.cluster.placement import engine_for
from paceline.training.coordinator import Coordinator, Status
from tests.conftest import SmallDisk
from tests.skips import needs_mount

FLAGS: dict[str, Any] = {"pace": "sync", "workers": 2, "batch_size": 100, "test_every": 1_000, "epochs": 5,
                         "checkpoint_every": 1e-6}  # fmt: skip


class Recorded:
    """A run whose disk is full after some of its evaluations, and what it said."""

    def __init__(self, data: Path, path: Path, **flags: Any) -> None:
        self.path = path
        self.said: list[str] = []
        self.at: dict[int, Any] = {}
        self._config = read_config(None, {"data": str(data), "run": str(path), **FLAGS, **flags})

    def train(self) -> paceline.Run:
        with engine_for(self._config) as engine:
            runs.train(self._config, engine, self.watch, notice=self.said.append)
        return paceline.Run(self.path)

    def watch(self, status: Status) -> None:
        for rows in [rows for rows in self.at if rows <= status.rows]:
            self.at.pop(rows)()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, clicks: Path) -> paceline.Run:
    return paceline.train(data=clicks, run=tmp_path_factory.mktemp("undisturbed") / "run", **FLAGS)


@needs_mount
class TestSmallDisk:
    def test_when_there_is_room_again_nothing_of_the_result_is_missing(
        self, small_disk: SmallDisk, clicks: Path, undisturbed: paceline.Run
    ) -> None:
        training = Recorded(clicks, small_disk.path / "run")
        training.at = {3_000: small_disk.fill, 25_000: small_disk.free}
        run = training.train()
        assert run.result["status"] == "done"
        assert run.result["model_sha256"] == undisturbed.result["model_sha256"]
        assert [line["rows"] for line in run.metrics] == [1_000 * i for i in range(1, 31)]
        (about_checkpoints,) = [line for line in training.said if "a new checkpoint" in line]
        assert about_checkpoints.startswith("no room left on the disk while writing `")
        assert len(training.said) == len({line.partition("`")[2] for line in training.said}), training.said

    def test_a_model_without_room_is_said_in_one_line_and_the_run_resumed(
        self, small_disk: SmallDisk, clicks: Path, undisturbed: paceline.Run
    ) -> None:
        training = Recorded(clicks, small_disk.path / "run")
        training.at = {20_000: small_disk.fill}
        with pytest.raises(UsageError, match=r"no room left on the disk while writing `\S+/model/\S+`") as caught:
            training.train()
        resume = f"free some space, then `paceline resume {training.path}` continues from its last checkpoint"
        assert caught.value.hint == resume
        small_disk.free()
        runs.resume(training.path)
        run = paceline.Run(training.path)
        assert run.result["model_sha256"] == undisturbed.result["model_sha256"]
        assert [line["rows"] for line in run.metrics] == [1_000 * i for i in range(1, 31)]


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_every_file_but_the_model_may_be_refused(
    tmp_path: Path, clicks: Path, undisturbed: paceline.Run, engine: str, request: pytest.FixtureRequest
) -> None:
    """The same without a small disk: nothing can be added to files, and nothing replaced, while the run trains."""
    flags = {"address": request.getfixturevalue("ray_cluster").address, "shards": 2} if engine == "ray" else {}
    training, patch = Recorded(clicks, tmp_path / "run", engine=engine, **flags), pytest.MonkeyPatch()

    def refuse(path: Path, *_: object) -> None:
        with files.translated_disk_errors(path):
            raise OSError(28, "No space left on device")

    def fill() -> None:
        for name in ("telemetry.recorder.append", "run_folder.append", "run_folder.replace_file",
                     "training.checkpoint.replace_file"):  # fmt: skip
            patch.setattr(f"paceline.{name}", refuse)

    training.at = {2_000: fill, 29_000: patch.undo}
    run = training.train()
    assert run.result["model_sha256"] == undisturbed.result["model_sha256"]
    assert [line["rows"] for line in run.metrics] == [1_000 * i for i in range(1, 31)]
    for what in ("telemetry", "new lines there", "a new checkpoint"):
        assert len([line for line in training.said if what in line]) == 1, training.said


def test_interrupted_without_room(tmp_path: Path, clicks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Recorded(clicks, tmp_path / "run")

    def interrupt() -> None:
        monkeypatch.setattr("safetensors.numpy.save_file", refuse_tensors)
        monkeypatch.setattr(Coordinator, "_must_stop", lambda coordinator: setattr(coordinator, "_interrupted", True))

    training.at = {5_000: interrupt}
    with pytest.raises(InterruptedRunError, match=r"interrupted after [\d,]+ rows; no checkpoint is saved: no room"):
        training.train()
    monkeypatch.undo()
    assert runs.resume(training.path).result["status"] == "done"


def refuse_tensors(*_: object) -> None:
    import safetensors

    raise safetensors.SafetensorError("I/O error: No space left on device (os error 28)")
