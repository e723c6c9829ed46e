"""Factorization machines of every kind keep what every model promises: all paces, both engines, the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from paceline.data.datasets import open_dataset
from paceline.data.prepare import prepare
from paceline.data.prepare_settings import PrepareConfig
from paceline.data.sparse.dataset import SparseDataset, sparse_writer
from paceline.data.synthetic import generate_clicks
from paceline.errors import InterruptedRunError
from paceline.models.loss_entries import LOSSES_OF_ONE_SCORE
from paceline.models.registry import MODELS
from paceline.run import resume
from tests.conformance.labelled_rows import DATA_OF_LOSS, write_rows
from tests.conftest import Command, all_rows, small_blocks
from tests.data.inputs import with_weights_and_fields
from tests.ray_cluster import RayCluster
from tests.training.test_checkpoint import stop_after

MACHINES = [name for name, entry in MODELS.items() if entry.has_factors]
FLAGS: dict[str, Any] = {"dim": 3, "learning_rate": 0.1, "seed": 5, "workers": 2}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """8,000 training and 4,000 test rows over 150 features whose pairs matter, with fields, in blocks of 1,000."""
    path = tmp_path_factory.mktemp("data") / "pairs"
    with small_blocks(1_000):
        generate_clicks(
            path, rows=8_000, features=150, test_rows=4_000, seed=3, interactions=True, fields=True,
            progress=lambda _: None,
        )  # fmt: skip
    return path


def engine_flags(engine: str, cluster: RayCluster) -> dict[str, Any]:
    return {"engine": engine, "address": cluster.address} if engine == "ray" else {"engine": engine}


# Sync on a cluster has the bits of sync in one process, which is tested below.
@pytest.mark.parametrize(
    ("engine", "pace"), [("local", "sync"), ("local", "async"), ("local", 2), ("ray", "async"), ("ray", 2)]
)
@pytest.mark.parametrize("optimizer", ["adagrad", "ftrl"])
@pytest.mark.parametrize("model", MACHINES)
def test_they_learn_at_every_pace_on_every_engine(
    tmp_path: Path, pairs: Path, ray_cluster: RayCluster, model: str, optimizer: str, pace: Any, engine: str
) -> None:
    flags = FLAGS | engine_flags(engine, ray_cluster) | {"batch_size": 20, "optimizer": optimizer}
    run = paceline.train(data=pairs, model=model, pace=pace, epochs=3, run=tmp_path / "run", **flags)
    assert run.result["rows"] == 24_000
    assert run.result["test"]["loss"] < 0.55
    assert run.result["test"]["auc"] > 0.75
    assert run.result["max_staleness"] <= {"sync": 0, 2: 2}.get(pace, 10**9)


def test_they_find_what_linear_models_cannot(tmp_path: Path, pairs: Path) -> None:
    losses = {}
    for model in ("linear", *MACHINES):
        flags = FLAGS | {"workers": 1, "batch_size": 1}
        flags |= {"settings": ["factors.learning_rate=0.05"]}
        flags = {name: value for name, value in flags.items() if name not in ("dim", "settings") or model != "linear"}
        run = paceline.train(data=pairs, model=model, pace="async", epochs=2, run=tmp_path / model, **flags)
        losses[model] = run.result["test"]["loss"]
    assert max(losses[model] for model in MACHINES) < 0.98 * losses["linear"]


@pytest.mark.parametrize("optimizer", MODELS["fwfm"].optimizers)
@pytest.mark.parametrize("model", ["linear", *MACHINES])
def test_they_learn_a_small_table_of_any_units_without_settings(tmp_path: Path, model: str, optimizer: str) -> None:
    """An income beside a fraction and a 0/1 column, and labels in thousands."""
    random, rows = np.random.default_rng(1), 484
    income, age = random.lognormal(10.5, 0.5, rows), random.uniform(18, 80, rows)
    flag, part = random.integers(0, 2, rows), random.uniform(0, 0.01, rows)
    label = 1e3 * (3 + 2e-4 * income + 0.05 * age + 2 * flag + 300 * part + random.normal(0, 0.3, rows))
    table = np.column_stack([income, age, flag, part, label])
    np.savetxt(tmp_path / "rows.csv", table, delimiter=",", header="income,age,flag,part,label", comments="")
    settings: dict[str, Any] = {"fields": True, "labels": "numbers", "test_fraction": 0.2}
    prepare(PrepareConfig(sources=[str(tmp_path / "rows.csv")], out=str(tmp_path / "data"), **settings), lambda _: None)
    run = paceline.train(data=tmp_path / "data", model=model, optimizer=optimizer, run=tmp_path / "run")
    assert run.result["test"]["r2"] > 0.97


@pytest.mark.parametrize("loss", LOSSES_OF_ONE_SCORE)
def test_they_learn_with_every_loss_of_one_score(tmp_path: Path, loss: str) -> None:
    """With the default rates, whatever the size of the labels."""
    data = write_rows(tmp_path / "data", DATA_OF_LOSS[loss])
    settings = ["loss.delta=500"] if loss == "huber" else []
    run = paceline.train(
        data=data, run=tmp_path / "run", model="fm", dim=3, loss=loss, pace="async", workers=1, epochs=8,
        settings=settings,
    )  # fmt: skip
    test = run.result["test"]
    assert test["baseline_loss"] - test["loss"] > 0.15 * abs(test["baseline_loss"])
    assert paceline.load(run.path).entry.name == "fm"


@pytest.mark.parametrize(
    ("model", "setting"),
    [
        *((model, "factors.row_wise=true") for model in MACHINES), ("fm", "factors.row_wise=false"),
        *((model, "optimizer.name=ftrl") for model in MACHINES),
        ("ffm", "factors.optimizer=sgd"),
    ],
)  # fmt: skip
def test_sync_has_the_same_bits_on_both_engines(
    tmp_path: Path, pairs: Path, ray_cluster: RayCluster, model: str, setting: str
) -> None:
    flags = FLAGS | {"model": model, "pace": "sync", "batch_size": 70, "settings": [setting, "factors.l2=0.001"]}
    local = paceline.train(data=pairs, run=tmp_path / "threads", **flags)
    spread = paceline.train(
        data=pairs, run=tmp_path / "processes", shards=2, **engine_flags("ray", ray_cluster), **flags
    )
    assert local.result["model_sha256"] == spread.result["model_sha256"]


@pytest.mark.parametrize("model", MACHINES)
def test_a_saved_model_predicts_as_it_was_tested(tmp_path: Path, pairs: Path, command: Command, model: str) -> None:
    run = paceline.train(data=pairs, model=model, run=tmp_path / "run", **FLAGS)
    dataset = open_dataset(pairs)
    assert isinstance(dataset, SparseDataset)
    loaded, rows = paceline.load(run.path), all_rows(dataset, "test")
    evaluated = command("evaluate", run.path, "--data", pairs)
    assert f"{run.result['test']['loss']:.5f}" in evaluated.out
    assert command("predict", run.path, "--data", pairs, "--out", tmp_path / "scores.csv").code == 0
    table = np.genfromtxt(tmp_path / "scores.csv", delimiter=",", names=True)
    np.testing.assert_allclose(loaded.predict_proba(rows)[:, 1], table["probability"], rtol=1e-4)


@pytest.mark.parametrize("model", MACHINES)
def test_a_stopped_run_is_resumed_with_the_same_bits(
    tmp_path: Path, pairs: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    flags = FLAGS | {"data": pairs, "model": model, "pace": "sync", "batch_size": 50, "epochs": 2, "test_every": 4_000}
    whole = paceline.train(run=tmp_path / "whole", **flags)
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(InterruptedRunError):
            paceline.train(run=tmp_path / "parts", **flags)
    assert resume(tmp_path / "parts").result["model_sha256"] == whole.result["model_sha256"]


@pytest.mark.parametrize("model", MACHINES)
def test_a_row_of_weight_two_counts_like_two_rows(tmp_path: Path, model: str) -> None:
    """With SGD, an update by one row of weight 2 moves everything as far as two rows do in a batch of that many."""
    rows = with_weights_and_fields(64)
    moved = []
    for name, weights in (("plain", np.full(64, 1, np.float32)), ("twice", np.full(64, 2, np.float32))):
        fields = tuple("abcde")
        with sparse_writer(tmp_path / name, features=300, source={}, fields=fields) as writer:
            writer.add("train", rows._replace(keys=rows.keys.copy(), weights=weights))
            writer.finish()
        run = paceline.train(
            data=tmp_path / name, model=model, run=tmp_path / f"run-{name}", dim=2, pace="sync", workers=1,
            batch_size=64, optimizer="sgd", learning_rate=1e-3, settings=["factors.optimizer=sgd"],
        )  # fmt: skip
        moved.append(paceline.load(run.path).weights)
    assert np.abs(moved[0]).max() > 0
    np.testing.assert_allclose(moved[1], 2 * moved[0], rtol=1e-4, atol=1e-8)
