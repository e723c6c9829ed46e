"""`train` and `resume` as users meet them: run folders, results, failures."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import paceline
from tests.cli.files import tree
from tests.conftest import Command


def test_result_has_what_scripts_rely_on(clicks: Path, tmp_path: Path) -> None:
    result = paceline.train(data=clicks, run=tmp_path / "run", workers=2).result
    assert set(result) == {
        "status", "model", "pace", "engine", "device", "workers", "shards", "batch_size", "loss", "optimizer", "rows",
        "steps", "data_fingerprint", "startup_seconds", "train_seconds", "rows_per_second", "test", "wire",
        "max_staleness", "restarts", "recoveries", "peak_memory_bytes", "model_sha256", "started", "machine",
    }  # fmt: skip
    assert set(result["test"]) == {"loss", "baseline_loss", "error", "auc"}
    assert result["wire"] == {"bytes_sent": 0, "bytes_received": 0, "bytes_per_row": 0.0, "refused": 0}
    assert result["recoveries"] == []
    assert result["restarts"] == {"workers": 0, "shards": 0}
    assert result["peak_memory_bytes"] > 0
    assert result["rows_per_second"] == pytest.approx(result["rows"] / result["train_seconds"])


def test_the_first_line_says_what_was_chosen(
    command: Command, clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.defaults.ROWS_PER_WORKER", 1_000)
    monkeypatch.setattr("paceline.engines.num_cores", lambda: 3)
    outcome = command("train", "--data", clicks, "--run", tmp_path / "run")
    assert outcome.err.splitlines()[0] == "linear: 3 workers, pace async, batch size 1"
    run = paceline.Run(tmp_path / "run")
    for found in (run.result, run.settings):
        assert (found["workers"], found["pace"], found["batch_size"]) == (3, "async", 1)
    alone = command("train", "--data", clicks, "--run", tmp_path / "alone", "--workers", 1, "--pace", "sync")
    assert alone.err.splitlines()[0] == "linear: 1 worker, pace sync, batch size 12"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model", "ffm"], "the model `ffm` needs the field of each nonzero"),
        (["--model", "softmax"], "the model `softmax` learns from images"),
        (["--early-stopping", 3], "has no validation rows"),
        (["--loss", "hing"], "`loss` is `hing`"),
        (["--model", "fm", "--dim", 0], "`dim` is 0; it must be from 1 to 64"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_else(
    command: Command, clicks: Path, tmp_path: Path, flags: list[Any], words: str
) -> None:
    outcome = command("train", "--data", clicks, "--run", tmp_path / "run", *flags)
    assert outcome.code == 2
    error, hint = outcome.err.splitlines()
    assert error.startswith("error: ")
    assert words in error
    assert hint.startswith("hint: ")
    assert not (tmp_path / "run").exists()


def test_few_rows_have_one_worker(mostly_clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More would learn less: on a machine with many cores, the default is the same model as with one."""
    monkeypatch.setattr("paceline.engines.num_cores", lambda: 64)
    few: dict[str, Any] = {"data": mostly_clicks, "train_rows": 500, "epochs": 1}
    run = paceline.train(run=tmp_path / "many", **few)
    alone = paceline.train(run=tmp_path / "alone", workers=1, **few)
    assert run.result["rows"] == 500
    assert run.result["model_sha256"] == alone.result["model_sha256"]


def test_without_a_name_a_run_goes_under_runs(
    command: Command, clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {command("train", "--data", clicks).out.splitlines()[-1] for _ in range(2)}
    assert len(names) == 2
    for name in names:
        assert re.fullmatch(r"run: runs/\d{8}-\d{6}-linear-async(-2)?", name)


def test_no_test_rows_is_fine(command: Command, one_key_per_row: Path, tmp_path: Path) -> None:
    outcome = command("train", "--data", one_key_per_row, "--run", tmp_path / "run")
    assert outcome.code == 0
    assert paceline.Run(tmp_path / "run").result["test"] == {}


def test_an_existing_run_folder_is_left_alone(command: Command, clicks: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("precious")
    outcome = command("train", "--data", clicks, "--run", tmp_path / "run")
    assert outcome.code == 2
    assert "exists already" in outcome.err
    assert "hint: choose another name, or remove it first" in outcome.err
    assert tree(tmp_path) == ["run/mine"]


def test_ctrl_c_before_training_leaves_nothing(
    command: Command, clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("paceline.training.coordinator.Coordinator.make_ready", interrupt)
    outcome = command("train", "--data", clicks, "--run", tmp_path / "run")
    assert outcome.code == 130
    assert outcome.err.splitlines()[1:] == ["error: interrupted", "hint: nothing was written; run it again"]
    assert tree(tmp_path) == []


def test_a_damaged_block_is_found_when_it_is_read(command: Command, clicks: Path, tmp_path: Path) -> None:

    shutil.copytree(clicks, tmp_path / "data")
    path = tmp_path / "data" / "train-00002.arrow"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    outcome = command("train", "--data", tmp_path / "data", "--run", tmp_path / "run", "--workers", 2)
    assert outcome.code == 2
    assert "train-00002.arrow` has a wrong checksum" in outcome.err
    assert paceline.Run(tmp_path / "run").result["status"] == "failed"


def test_divergence_fails_the_run(command: Command, clicks: Path, tmp_path: Path) -> None:
    outcome = command("train", "--data", clicks, "--optimizer", "sgd", "--learning-rate", 1e38, "--run", tmp_path / "r")
    assert outcome.code == 1
    assert "no longer a number" in outcome.err
    assert "--learning-rate" in outcome.err.splitlines()[-1]


def test_a_loss_that_has_grown_without_bound_fails_the_run(command: Command, clicks: Path, tmp_path: Path) -> None:
    outcome = command("train", "--data", clicks, "--learning-rate", 1e9, "--run", tmp_path / "r")
    assert outcome.code == 1
    assert "the run has diverged: the test loss is" in outcome.err
    assert "hint: --learning-rate 1e+08" in outcome.err
    assert paceline.Run(tmp_path / "r").result["status"] == "failed"
    assert not (tmp_path / "r" / "model").exists()


@pytest.mark.parametrize("flags", [["--test-every", 1_500], ["--model", "fm", "--test-every", 2_000]])
@pytest.mark.parametrize("rate", [1e9, 30])
def test_a_run_that_is_evaluated_several_times_may_diverge_all_the_same(
    command: Command, clicks: Path, tmp_path: Path, flags: list[Any], rate: float
) -> None:
    """After the first rows, such a loss falls from one evaluation to the next."""
    for seed in range(3):
        run = tmp_path / str(seed)
        outcome = command(
            "train", "--data", clicks, "--learning-rate", rate, "--epochs", 1, "--seed", seed, "--run", run, *flags
        )
        assert len(paceline.Run(run).metrics) > 2
        assert outcome.code == 1
        assert "the run has diverged: the test loss is" in outcome.err
        assert not (run / "model").exists()


def test_without_test_rows_the_training_loss_tells(command: Command, one_key_per_row: Path, tmp_path: Path) -> None:
    flags = ["--data", one_key_per_row, "--epochs", 1, "--optimizer", "sgd"]
    outcome = command("train", *flags, "--learning-rate", 3, "--run", tmp_path / "worse")
    assert outcome.code == 0
    [said] = [line for line in outcome.err.splitlines() if "worse than a constant" in line]
    assert "the mean training loss is" in said
    assert "the best constant prediction has 0.69315" in said
    assert "train loss  baseline" in outcome.out
    outcome = command("train", *flags, "--learning-rate", 1e9, "--run", tmp_path / "diverged")
    assert outcome.code == 1
    assert "the run has diverged: the mean training loss is" in outcome.err


def test_a_model_that_is_worse_than_a_constant_says_so(command: Command, mostly_clicks: Path, tmp_path: Path) -> None:
    flags = ["--data", mostly_clicks, "--run", tmp_path / "r", "--learning-rate", 3, "--epochs", 5]
    outcome = command("train", *flags)
    assert outcome.code == 0
    [said] = [line for line in outcome.err.splitlines() if "worse than a constant" in line]
    assert "--learning-rate 0.3" in said


def test_seconds_alone_have_no_other_limit(command: Command, clicks: Path, tmp_path: Path) -> None:
    assert command("train", "--data", clicks, "--seconds", 0.3, "--run", tmp_path / "run").code == 0
    assert paceline.Run(tmp_path / "run").result["train_seconds"] >= 0.3
