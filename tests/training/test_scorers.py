"""Which device scores rows, and what is refused. `conformance/test_scoring_on_gpu.py` compares predictions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from paceline.errors import ConfigError, PacelineError
from paceline.models.model import Parameters
from paceline.models.registry import find
from paceline.models.sparse import SparseModel, sparse_model
from paceline.models.trained import load_model
from paceline.training.scorers import GpuScorer, scoring_on
from tests.conftest import Command
from tests.exports.models import write_rows
from tests.skips import needs_no_gpu


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, drawings: Path) -> dict[str, Path]:
    """The run folder of a model of each kind."""
    folder = tmp_path_factory.mktemp("runs")
    data = write_rows(folder / "rows", fields=True)
    of: dict[str, dict[str, Any]] = {
        "linear": {"data": data},
        "ffm": {"data": data, "model": "ffm", "dim": 2},
        "fwfm": {"data": data, "model": "fwfm", "dim": 2},
        "softmax": {"data": drawings, "model": "softmax"},
    }
    for name, flags in of.items():
        paceline.train(run=folder / name, train_rows=200, workers=1, epochs=1, progress=False, **flags)
    return {"rows": data, **{name: folder / name for name in of}}


class OnGpu:
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def scores(self, *given: Any) -> str:
        self.calls.append(given)
        return "scores"


def test_rows_are_scored_by_the_rules_of_the_moment() -> None:
    table = OnGpu()
    scorer: Any = GpuScorer(None, table, 70)  # type: ignore[arg-type]
    assert scorer.scores(Parameters(), "rows") == "scores"
    assert table.calls == [("rows", 70)]
    assert scorer.scoring_threads


def test_on_the_cpu_the_model_itself_scores(runs: dict[str, Path]) -> None:
    model = load_model(runs["linear"])
    scoring = scoring_on("cpu", model)(model.parameters)
    assert scoring.scorer is model.model
    assert scoring.parameters is model.parameters


@pytest.mark.parametrize(
    ("name", "device", "words", "hint"),
    [
        ("linear", "gpu", "`device` is `gpu`; it must be cpu or cuda", "the default is `cpu`"),
        ("ffm", "cuda", "`device` is `cuda`; the model `ffm` takes cpu", "--device cpu, or leave it out"),
        ("fwfm", "cuda", "`device` is `cuda`; the model `fwfm` takes cpu", "--device cpu, or leave it out"),
        ("softmax", "cuda", "`device` is `cuda`; the model `softmax` takes cpu", "--device cpu, or leave it out"),
    ],
)
def test_what_a_device_cannot_score_is_refused_first(
    runs: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    device: str,
    words: str,
    hint: str,
) -> None:
    # A folder without a dataset, a file and rows that do not exist: nobody looks.
    X = np.zeros((3, 40))
    monkeypatch.setattr("paceline.given_data.prepare_memory", None)
    calls: list[Any] = [
        lambda: paceline.evaluate(runs[name], tmp_path / "no dataset", device=device),
        lambda: paceline.evaluate(runs[name], (X, np.zeros(3)), device=device),
        lambda: paceline.predict(runs[name], tmp_path / "no file", tmp_path / "out.csv", device=device),
        lambda: paceline.predict(runs[name], X, tmp_path / "out.csv", device=device),
    ]
    for call in calls:
        with pytest.raises(ConfigError) as error:
            call()
        assert (error.value.message, error.value.hint) == (words, hint)
    assert not any(tmp_path.iterdir())


@sparse_model()
def a_users_own(features: int) -> SparseModel:
    raise NotImplementedError


def test_users_own_models_over_sparse_rows_are_for_the_cpu(runs: dict[str, Path]) -> None:
    model = replace(load_model(runs["linear"]), entry=find(f"{__name__}:a_users_own"))
    with pytest.raises(ConfigError, match=r"`device` is `cuda`; the model `.*:a_users_own` takes cpu"):
        scoring_on("cuda", model)


def test_more_classes_than_a_gpu_takes_are_refused(tmp_path: Path) -> None:
    X, y = np.eye(129), np.arange(129)
    run = paceline.train(data=(X, y), labels="classes", run=tmp_path / "run", epochs=1, workers=1, progress=False)
    with pytest.raises(PacelineError, match=r"the data has 129 classes; a GPU takes up to 128") as error:
        paceline.predict(run, X, tmp_path / "out.csv", device="cuda")
    assert error.value.hint == "--device cpu"


@needs_no_gpu
def test_no_gpu_here(command: Command, runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    out = tmp_path / "out.csv"
    for done in (
        command("evaluate", runs["linear"], "--data", tmp_path / "no dataset", "--device", "cuda"),
        command("predict", runs["linear"], tmp_path / "no file", "--out", out, "--device", "cuda"),
    ):
        assert done.code == 2
        error, hint = done.err.splitlines()
        assert error == "error: `device` is `cuda`, but PyTorch finds no GPU here"
        assert hint.startswith("hint: --device cpu")
    assert not out.exists()
