"""A run that was stopped goes on as if it had not been; damage is found, not trained on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from paceline import run as runs
from paceline.config import OPTIMIZERS
from paceline.errors import DataError, InterruptedRunError, RunError, UsageError
from paceline.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from paceline.training.coordinator import Coordinator


def stop_after(monkeypatch: pytest.MonkeyPatch, num_legs: int) -> None:
    """Interrupt runs, as Ctrl-C does, when so many legs are done."""
    run_leg, legs = Coordinator._run_leg, [0]

    def leg(coordinator: Coordinator, *arguments: Any) -> None:
        run_leg(coordinator, *arguments)
        legs[0] += 1
        coordinator._interrupted = legs[0] == num_legs

    monkeypatch.setattr(Coordinator, "_run_leg", leg)


def without_seconds(line: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in line.items() if k != "seconds"}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_resumed_sync_run_has_the_bits_of_an_undisturbed_one(
    tmp_path: Path, clicks: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    flags: dict[str, Any] = {"data": clicks, "pace": "sync", "workers": 3, "batch_size": 40, "epochs": 2,
                             "optimizer": optimizer, "test_every": 2_500}  # fmt: skip
    whole = paceline.train(run=tmp_path / "whole", **flags)
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(InterruptedRunError, match="checkpoint is saved"):
            paceline.train(run=tmp_path / "parts", **flags)
    stopped = paceline.Run(tmp_path / "parts")
    assert stopped.result["status"] == "interrupted"
    assert 0 < stopped.result["rows"] < 12_000
    with pytest.raises(UsageError, match="no trained model"):
        paceline.load(stopped.path)
    resumed = runs.resume(stopped.path)
    assert resumed.result["status"] == "done"
    assert resumed.result["model_sha256"] == whole.result["model_sha256"]
    assert resumed.result["rows"] == 12_000
    assert len(resumed.metrics) == len(whole.metrics)
    for got, expected in zip(resumed.metrics, whole.metrics, strict=True):
        assert without_seconds(got) == pytest.approx(without_seconds(expected), rel=1e-12)


@pytest.mark.parametrize("pace", ["async", 2])
@pytest.mark.parametrize("batch_size", [1, 16])
def test_resumed_runs_read_the_rest_of_the_rows(
    tmp_path: Path, one_key_a_row: Path, monkeypatch: pytest.MonkeyPatch, pace: Any, batch_size: int
) -> None:
    rate = 2.0**-40
    flags: dict[str, Any] = {"data": one_key_a_row, "pace": pace, "workers": 3, "batch_size": batch_size,
             "optimizer": "sgd", "learning_rate": rate, "test_every": 160}  # fmt: skip
    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        with pytest.raises(InterruptedRunError):
            paceline.train(run=tmp_path / "run", **flags)
    run = runs.resume(tmp_path / "run")
    assert run.result["rows"] == 997
    visits = np.abs(paceline.load(run.path).weights) / (rate / 2) * batch_size
    tail = 997 % batch_size or batch_size
    # Once each; a row of the short last batch of the epoch counts batch_size / tail.
    possible = np.array([1, batch_size / tail])
    assert np.abs(visits[:, None] - possible).min(axis=1).max() < 1e-6


def test_checkpoints_come_every_so_often_and_two_are_kept(tmp_path: Path, clicks: Path) -> None:
    run = paceline.train(data=clicks, run=tmp_path / "run", epochs=0, seconds=0.6, checkpoint_every=0.1, workers=2)
    saved = sorted(path.name for path in (run.path / "checkpoints").iterdir())
    assert len(saved) == 3
    assert saved[-1] == "latest"
    assert (run.path / "checkpoints" / "latest").read_text() == saved[1]


def states(seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).random((50, 2), dtype=np.float32)


class TestDamage:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for position in (100, 200):
            save_checkpoint(tmp_path / "checkpoints", Progress(position=position, clock=3), states(position))
        return tmp_path / "checkpoints"

    def test_the_newest_is_loaded(self, folder: Path) -> None:
        progress, loaded = load_checkpoint(folder)
        assert progress.position == 200
        assert np.array_equal(loaded, states(200))

    @pytest.mark.parametrize("file", ["states.safetensors", "checkpoint.json"])
    @pytest.mark.parametrize("how", ["flip", "cut", "remove"])
    def test_a_damaged_one_gives_way_to_the_one_before(self, folder: Path, file: str, how: str) -> None:
        path = folder / f"{200:015d}" / file
        content = bytearray(path.read_bytes())
        content[-9 if file.endswith("s") else 2] ^= 0x55
        if how == "remove":
            path.unlink()
        else:
            path.write_bytes(content if how == "flip" else content[: len(content) // 2])
        assert load_checkpoint(folder)[0].position == 100

    def test_all_damaged(self, folder: Path) -> None:
        for path in folder.glob("0*/states.safetensors"):
            path.write_bytes(b"nonsense")
        with pytest.raises(DataError, match=r"(?s)does not read.*train again"):
            load_checkpoint(folder)

    def test_none(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="no checkpoint to go on from"):
            load_checkpoint(tmp_path / "checkpoints")

    def test_a_crash_while_saving_leaves_the_old_ones(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("safetensors.numpy.save_file", full)
        with pytest.raises(UsageError, match="no room left"):
            save_checkpoint(folder, Progress(position=300), states(300))
        assert load_checkpoint(folder)[0].position == 200
        assert not list(folder.glob(".*"))


def test_metrics_are_cut_back_to_the_checkpoint(tmp_path: Path, clicks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run killed after evaluations that no checkpoint has seen writes them again, once."""
    flags: dict[str, Any] = {"data": clicks, "pace": "sync", "batch_size": 100, "test_every": 1_000}
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(InterruptedRunError):
            paceline.train(run=tmp_path / "run", **flags)
    run = paceline.Run(tmp_path / "run")
    run.add_metrics({"rows": 3_000, "test_loss": 0.1})
    runs.resume(run.path)
    assert [line["rows"] for line in run.metrics] == [1000, 2000, 3000, 4000, 5000, 6000]


def test_resuming_what_cannot_be(tmp_path: Path, clicks: Path) -> None:
    run = paceline.train(data=clicks, run=tmp_path / "run")
    with pytest.raises(UsageError, match="is finished"):
        runs.resume(run.path)
    with pytest.raises(DataError, match="no run folder"):
        runs.resume(tmp_path)
    (run.path / "result.json").unlink()
    with pytest.raises(DataError, match="no checkpoint"):
        runs.resume(run.path)


def test_resuming_after_the_data_is_gone(tmp_path: Path, clicks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(clicks, tmp_path / "data")
    stop_after(monkeypatch, 1)
    with pytest.raises(InterruptedRunError):
        paceline.train(data=tmp_path / "data", run=tmp_path / "run", test_every=1_000)
    shutil.rmtree(tmp_path / "data")
    with pytest.raises(DataError, match="no dataset at"):
        runs.resume(tmp_path / "run")


def test_a_diverging_run_says_where_and_what_to_do(tmp_path: Path, clicks: Path) -> None:
    for pace, batch_size in (("sync", 50), ("async", 1), (2, 50)):
        path = tmp_path / f"{pace}"
        with pytest.raises(
            RunError, match=r"no longer a number: worker \d, step \d+, row [\d,]+, learning rate 1e\+38"
        ) as e:
            paceline.train(
                data=clicks, run=path, pace=pace, batch_size=batch_size, workers=2, optimizer="sgd", learning_rate=1e38
            )
        assert "--learning-rate 1e+37" in e.value.hint
        assert paceline.Run(path).result["status"] == "failed"
