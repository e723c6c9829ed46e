"""Adding an optimizer is what CONTRIBUTING.md says: its file, and one line in `OPTIMIZERS`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import paceline
import paceline.run
from paceline.errors import InterruptedRunError
from paceline.run_folder import RunFolder
from paceline.settings import RunConfig
from paceline.training.cluster.placement import engine_for

SOURCE = Path(paceline.__file__).parent
NEW_FILE = Path(__file__).parent / "new_optimizer.py"
BEGINNING, LINE = "OPTIMIZERS = {\n", '    "signum": Optimizer(),\n'


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of paceline with one file and one line more."""
    root = tmp_path_factory.mktemp("changed")
    shutil.copytree(SOURCE, root / "paceline", ignore=shutil.ignore_patterns("__pycache__"))
    folder = root / "paceline" / "parameters" / "optimizers"
    shutil.copy(NEW_FILE, folder / "signum.py")
    registry = folder / "__init__.py"
    text = registry.read_text("utf-8")
    assert text.count(BEGINNING) == 1
    registry.write_text(text.replace(BEGINNING, BEGINNING + LINE), "utf-8")
    return root


def run(changed: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(changed), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "paceline", *args]
    return subprocess.run(command, env=env, cwd=changed, capture_output=True, text=True, check=False)


def train(changed: Path, data: Path, *flags: str) -> dict[str, Any]:
    """The result of a run with the new optimizer."""
    folder = changed / "run"
    shutil.rmtree(folder, ignore_errors=True)
    common = ("--optimizer", "signum", "--learning-rate", "0.01", "--batch-size", "50", "--epochs", "2")
    done = run(changed, "train", "--data", str(data), "--run", str(folder), *common, *flags)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads((folder / "result.json").read_text("utf-8"))
    assert result["optimizer"] == "signum"
    return result


def test_it_trains_tables_at_every_pace(changed: Path, clicks: Path) -> None:
    sync = train(changed, clicks, "--workers", "2", "--pace", "sync")
    again = train(changed, clicks, "--workers", "2", "--pace", "sync", "--set", "optimizer.inertia=0.9")
    other = train(changed, clicks, "--workers", "2", "--pace", "sync", "--set", "optimizer.inertia=0.5")
    free = train(changed, clicks, "--workers", "2", "--pace", "async")
    assert sync["model_sha256"] == again["model_sha256"] != other["model_sha256"]
    for result in (sync, other, free):
        assert result["test"]["auc"] > 0.6
    written = (changed / "run" / "config.toml").read_text("utf-8")
    assert "inertia = 0.9" in written


def test_runs_from_before_it_was_added_continue(changed: Path, clicks: Path, tmp_path: Path) -> None:
    """They do not list its settings."""
    config = RunConfig(data=str(clicks), run=str(tmp_path / "run"), test_every=1_000, epochs=2)
    with pytest.raises(InterruptedRunError), engine_for(config) as engine:
        paceline.run.train(config, engine, lambda _status: os.kill(os.getpid(), signal.SIGINT))
    assert "inertia" not in (tmp_path / "run" / "config.toml").read_text("utf-8")
    done = run(changed, "resume", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    continued = RunFolder(tmp_path / "run").result
    settings: dict[str, Any] = {"pace": "sync", "workers": 1, "batch_size": 100, "test_every": 1_000, "epochs": 2}
    whole = paceline.train(data=clicks, run=tmp_path / "whole", **settings).result
    assert continued["rows"] == 12_000
    assert continued["model_sha256"] == whole["model_sha256"]


def test_it_trains_dense_models(changed: Path, drawings: Path) -> None:
    assert train(changed, drawings, "--model", "softmax")["test"]["accuracy"] > 0.8


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--set", "optimizer.inertia=1"], "`optimizer.inertia` is 1; it must be at least 0 and below 1"),
        (["--set", "optimizer.beta=2"], "`optimizer.beta` is 2, but signum does not use it"),
        (["--optimizer", "sgd", "--set", "optimizer.inertia=0.5"], "leave it out: it is for signum"),
        (["--model", "alexnet", "--device", "cuda"], "`optimizer` is `signum`, which has no update on a GPU"),
    ],
)
def test_its_settings_are_checked_before_anything_starts(changed: Path, flags: list[str], message: str) -> None:
    """No data is read, and no process is started, before settings are checked."""
    done = run(changed, "train", "--data", "none", "--optimizer", "signum", *flags)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (changed / "runs").exists()


def test_shards_update_on_the_cpu_so_workers_may_have_gpus(changed: Path) -> None:
    flags = ("--optimizer", "signum", "--model", "alexnet", "--device", "cuda", "--engine", "ray")
    done = run(changed, "train", "--data", "none", *flags)
    assert "`none`" in done.stderr
    assert "GPU" not in done.stderr
