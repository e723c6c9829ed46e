"""The processes that a run asks an engine for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from paceline.config import read_config
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.dataset import sparse_writer
from paceline.engines import PendingEngine
from paceline.errors import ConfigError
from paceline.training.cluster.placement import engine_for, requests_of
from tests.conftest import Command


def config_of(**flags: Any) -> Any:
    return read_config(None, {"data": "data", "engine": "ray", **flags}, ())


@pytest.mark.parametrize("model", ["alexnet-small", "linear", "fm"])
def test_shards_come_first_and_need_no_gpu(model: str) -> None:
    requests = requests_of(config_of(model=model, workers=2, shards=3, device="cuda"))
    assert [request.gpu for request in requests] == [False, False, False, True, True]
    assert all(request.may_share_gpu for request in requests)


def test_workers_that_add_up_among_themselves_share_no_gpu() -> None:
    flags = {"model": "alexnet-small", "pace": "sync", "workers": 2, "device": "cuda", "exchange": "allreduce"}
    requests = requests_of(config_of(**flags))
    assert [request.may_share_gpu for request in requests if request.gpu] == [False, False]


@pytest.mark.parametrize(("engine", "there", "starts"), [("ray", True, 1), ("ray", False, 0), ("local", True, 0)])
def test_nothing_is_started_for_data_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, there: bool, starts: int
) -> None:
    started: list[PendingEngine] = []
    monkeypatch.setattr(PendingEngine, "start", lambda engine: started.append(engine))
    if there:
        (tmp_path / "manifest.json").touch()
    engine_for(config_of(engine=engine, data=str(tmp_path)))
    assert len(started) == starts


def write(folder: Path, labels: list[float], kind: str) -> None:
    dtype = {"classes": np.uint16, "two-classes": np.uint8, "numbers": np.float32}[kind]
    count = len(labels)
    keys, values = np.zeros(count, np.uint32), np.ones(count, np.float32)
    with sparse_writer(folder, features=1, source={}, labels=kind) as writer:  # type: ignore[arg-type]
        writer.add("train", Batch(np.array(labels, dtype), np.arange(count + 1), keys, values))
        writer.finish()


@pytest.mark.parametrize(
    ("labels", "kind", "flags", "message"),
    [
        ([0.5, 7], "numbers", ["--loss", "logistic"], "the loss `logistic` needs labels of kind `two-classes`"),
        ([0.5, -7], "numbers", ["--loss", "poisson"], "the loss `poisson` needs labels of at least 0"),
        ([0.5, 7], "numbers", ["--class-weight", "balanced"], "labels of the data are numbers"),
        ([0, 1], "two-classes", ["--model", "ffm"], "needs the field of each nonzero"),
        ([0, 2], "classes", [], "has the class `1`"),
        ([0, 1], "two-classes", ["--early-stopping", 3], "has no validation rows"),
        ([0, 1], "two-classes", ["--train-rows", 3], "has 2 training rows"),
        ([0, 1], "two-classes", ["--model", "softmax"], "the model `softmax` learns from images"),
    ],
)
def test_data_that_does_not_fit_is_refused_before_a_cluster_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command, labels: list[float], kind: str,
    flags: list[Any], message: str,
) -> None:  # fmt: skip
    started: list[PendingEngine] = []
    monkeypatch.setattr(PendingEngine, "start", lambda engine: started.append(engine))
    write(tmp_path / "data", labels, kind)
    outcome = command("train", "--data", tmp_path / "data", "--engine", "ray", "--run", tmp_path / "run", *flags)
    assert outcome.code == 2
    [error, hint] = outcome.err.splitlines()
    assert message in error
    assert hint.startswith("hint: ")
    assert not started
    assert not (tmp_path / "run").exists()


def test_python_is_refused_before_a_cluster_starts_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[PendingEngine] = []
    monkeypatch.setattr(PendingEngine, "start", lambda engine: started.append(engine))
    write(tmp_path / "data", [0.5, 7], "numbers")
    with pytest.raises(ConfigError, match="the loss `hinge` needs labels"):
        paceline.train(data=tmp_path / "data", engine="ray", loss="hinge", progress=False)
    assert not started
