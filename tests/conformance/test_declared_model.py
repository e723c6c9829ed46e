"""A model of a user's own, in a module that the test writes: a table of three columns with random initial values, one
dense tensor, and a squared loss. It trains at every pace on every engine without a line of paceline knowing of it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import paceline
from paceline.data.sparse.batch import Batch
from paceline.errors import ConfigError, UsageError
from tests.conftest import Command
from tests.sweeps.conftest import read_csv

MODULE = """
import numpy as np

from paceline.models.sparse import Columns, Initial, SparseModel, sparse_model


def score(rows, table, tensors):
    parts = rows.values[:, None] * table[rows.numbers]
    totals = np.zeros((len(rows.offsets) - 1, 3), np.float32)
    np.add.at(totals, rows.row_of, parts)
    return totals @ tensors["mix"]


def gradient(rows, table, tensors, slopes, table_sums, tensor_sums):
    slope = slopes[rows.row_of, None] * rows.values[:, None]
    np.add.at(table_sums, rows.numbers, slope * tensors["mix"])
    tensor_sums["mix"] += (slope * table[rows.numbers]).sum(axis=0)


@sparse_model(loss="squared", optimizers=("sgd", "adagrad"))
def build(features):
    return SparseModel(
        columns=(Columns("factors", 3, Initial("normal", 0.1)),),
        tensors={"mix": np.array([1.0, 0.5, -0.5], np.float32)},
        score=score,
        gradient=gradient,
    )


@sparse_model(loss="squared")
def build_groups(features):
    columns = (
        Columns("weight", 1, optimizer="ftrl"),
        Columns("still", 1, Initial("normal", 0.1), optimizer="sgd", learning_rate=1e-30),
        Columns("shrinking", 1, Initial("normal", 0.1), optimizer="sgd", l2=1.0),
    )
    return SparseModel(columns, score, gradient, {"mix": np.array([1.0, 0.5, 0.0], np.float32)})
"""
MODEL = "mine:build"
FLAGS: dict[str, Any] = {"model": MODEL, "optimizer": "sgd", "learning_rate": 0.05, "batch_size": 20, "seed": 5}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the module lies and commands are given."""
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    sys.modules.pop("mine", None)
    return tmp_path


def start_loss(clicks: Path) -> float:
    """The loss of predicting 0 always, which small random factors come close to."""
    from paceline.data.datasets import open_dataset

    labels = np.concatenate([open_dataset(clicks).block("test", 0).labels])
    return float((labels.astype(np.float64) ** 2 / 2).mean())


@pytest.mark.parametrize("engine", ["local", "ray"])
@pytest.mark.parametrize("pace", ["sync", "async", 2])
def test_it_learns_at_every_pace_on_every_engine(home: Path, clicks: Path, pace: str | int, engine: str) -> None:
    run = paceline.train(data=clicks, pace=pace, engine=engine, workers=2, epochs=3, run="run", **FLAGS)
    assert set(run.result["test"]) == {"loss", "baseline_loss", "mae", "r2", "rmse"}
    assert run.result["test"]["loss"] < 0.9 * start_loss(clicks)
    assert run.result["test"]["rmse"] == pytest.approx((2 * run.result["test"]["loss"]) ** 0.5, rel=1e-5)
    assert run.result["max_staleness"] <= {"sync": 0, 2: 2}.get(pace, 10**9)


def test_reports_comparisons_and_sweeps_show_its_metrics(home: Path, clicks: Path, command: Command) -> None:
    recipe = home / "sweep.toml"
    recipe.write_text(f'''data = "{clicks}"\nmodel = "{MODEL}"\npace = "sync"\nbatch_size = 20\ntest_every = 2000
optimizer = {{ name = "sgd" }}\n[sweep]\noptimizer.learning_rate = [0.02, 0.05]\n''')
    swept = command("sweep", recipe, "--out", "out")
    assert swept.code == 0, swept.err
    header = next(line for line in swept.out.splitlines() if "test loss" in line)
    assert "test RMSE" in header
    assert "test error" not in header
    rows = read_csv(home / "out/summary.csv")
    runs = [paceline.Run(path.parent) for path in sorted((home / "out").glob("*/result.json"))]
    assert [float(row["test_rmse"]) for row in rows] == [run.result["test"]["rmse"] for run in runs]
    compared = command("compare", *(run.path for run in runs), "--out", "both.html")
    assert "test RMSE" in compared.out
    assert "Test RMSE" in (home / "both.html").read_text()
    page = runs[0].report().read_text()
    assert "RMSE" in page
    assert f"{runs[0].result['test']['rmse']:.5f}" in page
    trained = command("train", "--data", clicks, "--model", MODEL, "--optimizer", "sgd", "--steps", 5)
    assert trained.out.splitlines()[0].split()[-1] == "RMSE"


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_sync_has_the_same_bits_on_both_engines(home: Path, clicks: Path, optimizer: str) -> None:
    flags = FLAGS | {"optimizer": optimizer}
    runs = [
        paceline.train(data=clicks, pace="sync", workers=3, run="threads", **flags),
        paceline.train(data=clicks, pace="sync", workers=3, run="processes", engine="ray", shards=2, **flags),
    ]
    assert runs[0].result["model_sha256"] == runs[1].result["model_sha256"]


def test_columns_may_have_an_optimizer_a_rate_and_l2_of_their_own(home: Path, clicks: Path) -> None:
    flags = FLAGS | {"model": "mine:build_groups", "optimizer": "adagrad", "pace": "sync", "data": clicks}
    once = paceline.train(run="once", workers=2, **flags)
    spread = paceline.train(run="spread", workers=2, engine="ray", shards=2, **flags)
    twice = paceline.train(run="twice", workers=2, epochs=2, **flags)
    assert once.result["model_sha256"] == spread.result["model_sha256"]
    first, second = (safetensors.numpy.load_file(run.path / "model" / "model.safetensors") for run in (once, twice))
    np.testing.assert_array_equal(first["table.still"], second["table.still"])
    assert np.any(first["table.still"])
    assert np.any(first["table.weight"] != second["table.weight"])
    used = first["table.weight"].ravel() != 0
    # L2 alone moves these at first, because `mix` ignores them.
    assert np.abs(second["table.shrinking"][used]).mean() < np.abs(first["table.shrinking"][used]).mean()
    assert np.abs(first["table.shrinking"][~used]).mean() == pytest.approx(0.08, rel=0.2)


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_a_killed_run_is_resumed_with_the_same_bits(home: Path, clicks: Path, engine: str) -> None:
    settings = {"data": clicks, "pace": "sync", "engine": engine, "workers": 2, "epochs": 40, **FLAGS}
    whole = paceline.train(run="whole", **settings)
    words = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline", "train", *words, "--run=killed", "--checkpoint-every=0.1"],
        start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 100
    while not (home / "killed/checkpoints/latest").exists() and time.monotonic() < deadline:
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    resume = [sys.executable, "-m", "paceline", "resume", "killed", "--model=mine:build"]
    subprocess.run(resume, check=True, capture_output=True, timeout=150)
    resumed = json.loads((home / "killed/result.json").read_text())
    assert resumed["model_sha256"] == whole.result["model_sha256"]


def test_it_is_saved_loaded_and_scored(home: Path, clicks: Path) -> None:
    run = paceline.train(data=clicks, pace="sync", workers=2, run="run", **FLAGS)
    tensors = safetensors.numpy.load_file(run.path / "model" / "model.safetensors")
    features = tensors["table.factors"].shape[0]
    assert {name: tensor.shape for name, tensor in tensors.items()} == {"table.factors": (features, 3), "mix": (3,)}
    rows = Batch.from_lists([0, 0], [[3, 5], [7, features + 9]], [[1.0, 0.5], [2.0, 1.0]])
    expected = [
        (tensors["table.factors"][3] + 0.5 * tensors["table.factors"][5]) @ tensors["mix"],
        2 * tensors["table.factors"][7] @ tensors["mix"],
    ]
    assert paceline.load(run.path, allow_code=True).predict(rows) == pytest.approx(expected, rel=1e-5)
    for command in (["evaluate", "run", f"--data={clicks}"], ["predict", "run", f"--data={clicks}", "--out=out.csv"]):
        words = [sys.executable, "-m", "paceline", *command]
        found = subprocess.run([*words, "--model=mine:build"], capture_output=True, text=True, timeout=60)
        assert found.returncode == 0, found.stderr
    header, first, *_ = (home / "out.csv").read_text().splitlines()
    assert header.replace('"', "") == "row,label,prediction"
    assert first.startswith("0,")


def test_a_run_folder_cannot_have_code_imported(home: Path, clicks: Path) -> None:
    """The module would leave a file."""
    run = paceline.train(data=clicks, pace="sync", steps=1, run="run", **FLAGS)
    (home / "evil.py").write_text("open('imported', 'w')\n")
    described = run.path / "model" / "model.json"
    described.write_text(described.read_text().replace("mine:build", "evil:build"))
    for model, words in (
        ("", "needs the code `evil:build`"),
        ("--model=mine:build", "is `evil:build`, not `mine:build`"),
    ):
        command = [sys.executable, "-m", "paceline", "evaluate", "run", f"--data={clicks}", *filter(None, [model])]
        found = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert found.returncode == 2
        assert words in found.stderr
    with pytest.raises(UsageError, match="needs the code `evil:build`"):
        paceline.load("run")
    assert not (home / "imported").exists()


def test_resume_imports_only_code_that_the_user_names(home: Path, clicks: Path) -> None:
    """The module would leave a file."""
    run = paceline.train(data=clicks, pace="sync", steps=1, run="run", **FLAGS)
    (home / "evil.py").write_text("open('imported', 'w')\n")
    settings = run.path / "config.toml"
    settings.write_text(settings.read_text().replace("mine:build", "evil:build"))
    for model, message, hint in (
        ("", "needs the code `evil:build`", "`paceline resume run --model evil:build`"),
        ("--model=mine:build", "is `evil:build`, not `mine:build`", "name that one"),
    ):
        command = [sys.executable, "-m", "paceline", "resume", "run", *filter(None, [model])]
        found = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert found.returncode == 2
        assert message in found.stderr
        assert hint in found.stderr
    assert not (home / "imported").exists()


def test_what_it_does_not_allow_is_refused_before_anything_starts(home: Path, clicks: Path) -> None:
    with pytest.raises(ConfigError, match=r"`optimizer` is `ftrl`, which cannot train the model `mine:build`"):
        paceline.train(data=clicks, model=MODEL, optimizer="ftrl", run="run")
    assert not (home / "run").exists()


@pytest.mark.parametrize("function", ["score", "gradient"])
def test_a_function_that_fails_is_named(home: Path, clicks: Path, function: str) -> None:
    broken = MODULE.replace(f"def {function}(rows, table", f"def {function}(rows, nothing", 1)
    (home / "mine.py").write_text(broken)
    sys.modules.pop("mine", None)
    with pytest.raises(
        ConfigError,
        match=rf"`{function}` of the model fails: NameError: name 'table' is not defined \(.*mine.py, line \d+\)",
    ):
        paceline.train(data=clicks, run="run", **FLAGS)
