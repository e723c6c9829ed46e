"""A sweep runs every point once; a failure loses nothing, and the same command continues it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import paceline.run
from paceline.config import read_config
from paceline.errors import RunError, UsageError
from paceline.files import locked
from paceline.matrices.jobs import run_trace
from paceline.matrices.settings import TraceSettings
from paceline.run_folder import RunFolder
from paceline.settings import RunConfig
from paceline.sweeps.run import LOCK
from paceline.training.cluster.placement import engine_for
from tests.conftest import OLDER_DATA, OLDER_RUNS, Command
from tests.sweeps.conftest import read_csv


def test_every_combination_is_run_once(recipe: Path, tmp_path: Path, command: Command) -> None:
    out = tmp_path / "out"
    done = command("sweep", recipe, "--out", out)
    assert done.code == 0, done.err
    assert "[1/4] pace=sync, batch_size=50" in done.err
    rows = read_csv(out / "summary.csv")
    assert [(row["pace"], row["batch_size"]) for row in rows] == [
        ("sync", "50"), ("sync", "500"), ("async", "50"), ("async", "500"),
    ]  # fmt: skip
    for row in rows:
        run = RunFolder(out / f"pace-{row['pace']}_batch_size-{row['batch_size']}")
        assert float(row["test_loss"]) == run.result["test"]["loss"]
        assert run.config.batch_size == int(row["batch_size"])
    assert (out / "summary.md").read_text().startswith("| pace | batch_size | status |")
    assert "Content-Security-Policy" in (out / "comparison.html").read_text()
    assert str(out / "comparison.html") in done.out
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/result.json")}
    again = command("sweep", recipe, "--out", out)
    assert again.code == 0
    assert again.err.count("done before") == 4
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/result.json")} == before


def test_a_failed_point_is_named_and_tried_again(
    recipe: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    train: Any = paceline.run.train

    def fail_once(config: RunConfig, *rest: Any, **more: Any) -> RunFolder:
        if config.pace == "async" and config.batch_size == 50:
            raise RunError("worker 0 is gone")
        run: RunFolder = train(config, *rest, **more)
        return run

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr("paceline.run.train", fail_once)
        done = command("sweep", recipe, "--out", out)
    assert done.code == 1
    assert "pace=async, batch_size=50: worker 0 is gone" in done.err
    assert "1 of 4 points failed" in done.err
    rows = read_csv(out / "summary.csv")
    assert [row["status"] for row in rows] == ["done", "done", "failed", "done"]
    assert command("sweep", recipe, "--out", out).code == 0
    assert [row["status"] for row in read_csv(out / "summary.csv")] == ["done"] * 4


def test_a_killed_sweep_continues(recipe: Path, tmp_path: Path, command: Command, clicks: Path) -> None:
    """SIGKILL in the second run: the first stays, the second goes on from its checkpoint."""
    out = tmp_path / "out"
    recipe.write_text(
        f'data = "{clicks}"\nepochs = 300\ncheckpoint_every = 0.2\nbatch_size = 5\n[sweep]\nseed = [1, 2]\n'
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline", "sweep", str(recipe), "--out", str(out)], stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 100
        while not (out / "seed-2" / "checkpoints" / "latest").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert [row["seed"] for row in read_csv(out / "summary.csv")] == ["1"]
    first = RunFolder(out / "seed-1").result["model_sha256"]
    inode = (out / "seed-2" / "config.toml").stat().st_ino
    done = command("sweep", recipe, "--out", out)
    assert done.code == 0, done.err
    assert "[1/2] seed=1: done before" in done.err
    # If it started over, this would be another file.
    assert (out / "seed-2" / "config.toml").stat().st_ino == inode
    assert RunFolder(out / "seed-1").result["model_sha256"] == first
    assert RunFolder(out / "seed-2").result["rows"] == 300 * 6_000


def test_another_recipe_in_the_same_folder(recipe: Path, tmp_path: Path, command: Command) -> None:
    out = tmp_path / "out"
    assert command("sweep", recipe, "--out", out).code == 0
    recipe.write_text(recipe.read_text().replace("0.1", "0.3"))
    done = command("sweep", recipe, "--out", out)
    assert done.code == 2
    assert "was run with other settings than the recipe has now" in done.err


def test_a_folder_of_other_settings_is_found_before_the_first_run(
    recipe: Path, tmp_path: Path, command: Command
) -> None:
    out = tmp_path / "out"
    assert command("sweep", recipe, "--out", out).code == 0
    changed = recipe.read_text().replace("0.1", "0.3").replace('["sync", "async"]', '[1, "sync"]')
    recipe.write_text(changed)
    assert command("sweep", recipe, "--out", out).code == 2
    assert not (out / "pace-1_batch_size-50").exists()


def test_other_data(recipe: Path, tmp_path: Path, command: Command, mostly_clicks: Path, clicks: Path) -> None:
    out = tmp_path / "out"
    assert command("sweep", recipe, "--out", out).code == 0
    moved = tmp_path / "moved"
    shutil.copytree(clicks, moved)
    same = command("sweep", recipe, "--out", out, "--data", moved)
    assert same.err.count("done before") == 4
    other = command("sweep", recipe, "--out", out, "--data", mostly_clicks)
    assert other.code == 2
    assert "was run on other data" in other.err


def test_a_folder_that_is_not_a_run_is_left_alone(recipe: Path, tmp_path: Path, command: Command) -> None:
    kept = tmp_path / "out" / "pace-async_batch_size-500" / "thesis.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("years of work")
    done = command("sweep", recipe, "--out", tmp_path / "out")
    assert done.code == 2
    assert "exists already" in done.err
    assert kept.read_text() == "years of work"


@pytest.mark.parametrize("name", ["result.json", "config.toml"])
def test_a_broken_file_of_a_run_is_named(recipe: Path, tmp_path: Path, command: Command, name: str) -> None:
    out = tmp_path / "out"
    assert command("sweep", recipe, "--out", out).code == 0
    broken = out / "pace-sync_batch_size-50" / name
    broken.write_text("{broken")
    done = command("sweep", recipe, "--out", out)
    assert done.code == 2
    assert done.err.startswith("error: ")
    assert str(broken) in done.err
    assert "hint: " in done.err


def test_a_file_in_place_of_the_folder(recipe: Path, tmp_path: Path, command: Command) -> None:
    (tmp_path / "out").touch()
    done = command("sweep", recipe, "--out", tmp_path / "out")
    assert done.code == 2
    assert "cannot be written: File exists" in done.err


def test_two_sweeps_in_one_folder(recipe: Path, tmp_path: Path, command: Command) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / LOCK).touch()
    with locked(out / LOCK):
        done = command("sweep", recipe, "--out", out)
    assert done.code == 2
    assert "another process is using" in done.err
    assert not list(out.glob("*/*"))


def test_a_planted_pipe_is_not_waited_for(recipe: Path, tmp_path: Path, command: Command) -> None:
    (tmp_path / "out").mkdir()
    os.mkfifo(tmp_path / "out" / LOCK)
    done = command("sweep", recipe, "--out", tmp_path / "out")
    assert (done.code, f"{LOCK}` is not a regular file" in done.err) == (2, True)


def test_the_folder_of_a_live_run_is_left_alone(recipe: Path, tmp_path: Path, command: Command) -> None:
    """Without a checkpoint, a point starts over: but not while another process trains in its folder."""
    out = tmp_path / "out"
    assert command("sweep", recipe, "--out", out).code == 0
    live = out / "pace-sync_batch_size-50"
    (live / "result.json").unlink()
    before = {path: path.stat().st_ino for path in live.rglob("*")}
    with locked(live / "config.toml"):
        done = command("sweep", recipe, "--out", out)
        assert {path: path.stat().st_ino for path in live.rglob("*")} == before
    assert done.code == 1
    assert f"another process is using `{live}`" in done.err
    assert command("sweep", recipe, "--out", out).code == 0


@pytest.mark.parametrize("job", ["train", "trace"])
def test_a_run_holds_its_folder(tmp_path: Path, clicks: Path, job: str) -> None:
    run = tmp_path / "run"
    refused: list[bool] = []

    def try_to_take(*_: object) -> None:
        if (run / "config.toml").exists() and not refused:
            with pytest.raises(UsageError, match="another process is using"), locked(run / "config.toml"):
                pass
            refused.append(True)

    if job == "train":
        config = read_config(None, {"data": str(clicks), "run": str(run)})
        with engine_for(config) as engine:
            paceline.run.train(config, engine, try_to_take)
    else:
        run_trace(TraceSettings(size=8, blocks=2, run=str(run)), try_to_take, print)
    assert refused
    with locked(run / "config.toml"):
        pass


class CrashError(Exception):
    """As a library may raise."""


def test_an_error_that_is_not_ours_loses_nothing(
    recipe: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    train: Any = paceline.run.train

    def crash(config: RunConfig, *rest: Any, **more: Any) -> RunFolder:
        run: RunFolder = train(config, *rest, **more)
        if config.pace == "sync" and config.batch_size == 50:
            raise CrashError("out of memory | on a GPU\nwith details")
        return run

    monkeypatch.setattr("paceline.run.train", crash)
    done = command("sweep", recipe, "--out", tmp_path / "out")
    assert done.code == 1
    assert "CrashError: out of memory" in done.err
    assert "traceback.txt" in done.err
    assert [row["status"] for row in read_csv(tmp_path / "out" / "summary.csv")][1:] == ["done"] * 3
    assert "CrashError: out of memory \\| on a GPU |" in (tmp_path / "out" / "summary.md").read_text()


def test_operations_that_are_missing_are_timed_without_training_again(
    recipe: Path, tmp_path: Path, command: Command
) -> None:
    out = tmp_path / "out"
    recipe.write_text("checkpoint_every = 0.001\n" + recipe.read_text())
    assert command("sweep", recipe, "--out", out).code == 0
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/result.json")}
    recipe.write_text("ops = true\n" + recipe.read_text())
    done = command("sweep", recipe, "--out", out)
    assert done.code == 0, done.err
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/result.json")} == before
    rows = read_csv(out / "summary.csv")
    assert len(rows) == 4
    assert all(row["gather_ns_per_row"] for row in rows)


def test_stopped_by_the_user(recipe: Path, tmp_path: Path, clicks: Path) -> None:
    """Ctrl-C in the second run: what is done is in the tables, and the hint is the sweep's."""
    out = tmp_path / "out"
    recipe.write_text(f'data = "{clicks}"\n[[points]]\nepochs = 1\n[[points]]\nepochs = 100000\nbatch_size = 5\n')
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline", "sweep", str(recipe), "--out", str(out)], stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 100
        while not (out / "epochs-100000_batch_size-5" / "roles.json").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(0.3)
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command continues the sweep" in err
    assert [row["epochs"] for row in read_csv(out / "summary.csv")] == ["1"]


def test_a_sweep_of_traces(tmp_path: Path, command: Command) -> None:
    recipe, out = tmp_path / "traces.toml", tmp_path / "out"
    recipe.write_text('job = "trace"\nsize = 300\nseed = 5\n[sweep]\nblocks = [1, 3]\n')
    done = command("sweep", recipe, "--out", out)
    assert done.code == 0, done.err
    rows = read_csv(out / "summary.csv")
    assert [row["blocks"] for row in rows] == ["1", "3"]
    assert [float(row["trace"]) for row in rows] == [
        RunFolder(out / f"blocks-{blocks}").result["trace"] for blocks in (1, 3)
    ]
    assert float(rows[0]["trace"]) == pytest.approx(float(rows[1]["trace"]), rel=1e-10)
    page = (out / "comparison.html").read_text()
    assert "elements/s" in page
    assert "Learning" not in page
    assert command("sweep", recipe, "--out", out).err.count("done before") == 2


@pytest.mark.filterwarnings("ignore:.*has no checksum")
def test_a_sweep_of_an_older_version_continues(tmp_path: Path, command: Command) -> None:
    """Its first point is done, and its second was stopped after 6 of 12 rows."""
    recipe, out = tmp_path / "older.toml", tmp_path / "out"
    settings = f'data = "{OLDER_DATA / "rows"}"\nbatch_size = 2\nepochs = 2\ntest_every = 6\n'
    recipe.write_text(settings + '[sweep]\npace = ["sync", "async"]\n')
    shutil.copytree(OLDER_RUNS / "sweep", out)
    first = RunFolder(out / "pace-async").metrics
    done = command("sweep", recipe, "--out", out)
    assert done.code == 0, done.err
    assert "[1/2] pace=sync: done before" in done.err
    continued = RunFolder(out / "pace-async")
    assert continued.result["status"] == "done"
    assert continued.metrics[: len(first)] == first
    other = command("sweep", recipe, "--out", out, "--set", "seed=1")
    assert "was run with other settings" in other.err


def test_points_with_other_defaults_are_told_apart(
    tmp_path: Path, clicks: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep began on a machine with one core. What is done stays; `--set` gives other points the same settings."""
    monkeypatch.setattr("paceline.defaults.ROWS_PER_WORKER", 1_000)
    recipe, out = tmp_path / "seeds.toml", tmp_path / "out"
    recipe.write_text(f'data = "{clicks}"\n[sweep]\nseed = [1, 2]\n')
    with monkeypatch.context() as patch:
        patch.setattr("paceline.engines.num_cores", lambda: 1)
        assert "note" not in command("sweep", recipe, "--out", out).err
    monkeypatch.setattr("paceline.engines.num_cores", lambda: 3)
    assert "note" not in command("sweep", recipe, "--out", out).err
    shutil.rmtree(out / "seed-2")
    done = command("sweep", recipe, "--out", out)
    assert done.code == 0, done.err
    assert "note: seed=1 was begun with workers 1; by default, further points now get workers 3" in done.err
    assert "hint: --set workers=1 gives all points the same" in done.err
    assert [RunFolder(out / f"seed-{seed}").config.workers for seed in (1, 2)] == [1, 3]
    shutil.rmtree(out / "seed-2")
    assert "note" not in command("sweep", recipe, "--out", out, "--set", "workers=1").err
    assert RunFolder(out / "seed-2").config.workers == 1


def test_a_sweep_of_traces_of_an_older_version_continues(tmp_path: Path, command: Command) -> None:
    recipe, out = tmp_path / "older.toml", tmp_path / "out"
    recipe.write_text('job = "trace"\nsize = 60\n[sweep]\nblocks = [2]\n')
    shutil.copytree(OLDER_RUNS / "traces", out)
    assert "done before" in command("sweep", recipe, "--out", out).err
