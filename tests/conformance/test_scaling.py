"""A model that was trained on scaled values is one for the values of the source, whatever scores it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import paceline
from paceline.data.prepare import prepare
from paceline.data.prepare_settings import PrepareConfig
from paceline.predictions import evaluate_model
from tests.ray_cluster import RayCluster

MODULE = """
import numpy as np
from paceline.models.sparse import Columns, SparseModel, sparse_model

SEEN = []

def score(rows, table, tensors):
    SEEN.append(float(rows.values.max()))
    return np.bincount(rows.row_of, rows.values * table[rows.numbers, 0], len(rows.offsets) - 1)

def gradient(rows, table, tensors, slopes, table_sums, tensor_sums):
    np.add.at(table_sums[:, 0], rows.numbers, slopes[rows.row_of] * rows.values)

@sparse_model()
def build(features):
    return SparseModel(columns=(Columns("weight", 1),), score=score, gradient=gradient)
"""


def table(seed: int, rows: int = 600) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    income, year, flag = (
        40_000 + 15_000 * rng.normal(size=rows),
        2_000 + 9 * rng.normal(size=rows),
        rng.random(rows) < 0.3,
    )
    z = (income - 40_000) / 15_000 - (year - 2_000) / 9 + 2.0 * flag
    values = np.stack([income, year, flag], axis=1).astype(np.float32)
    return values, (rng.random(rows) < 1 / (1 + np.exp(-z))).astype(int)


def prepared(folder: Path, values: Any, labels: Any, **settings: Any) -> Path:
    folder.mkdir()
    lines = [",".join([*map(repr, row.tolist()), str(label)]) for row, label in zip(values, labels, strict=True)]
    (folder / "a.csv").write_text("\n".join(["income,year,flag,label", *lines]) + "\n")
    prepare(PrepareConfig(sources=[str(folder / "a.csv")], out=str(folder / "d"), **settings), lambda _: None)
    return folder / "d"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("data") / "train", *table(0), test_fraction=0.2)


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> paceline.Run:
    return paceline.train(data=data, run=tmp_path_factory.mktemp("runs") / "run", pace="sync", epochs=20, batch_size=20)


def test_it_learns_without_any_setting(run: paceline.Run) -> None:
    assert run.result["test"]["loss"] < 0.57  # unscaled, it is above 1; of a constant, 0.68


def test_raw_rows_are_scored_as_those_of_the_dataset(run: paceline.Run, data: Path, tmp_path: Path) -> None:
    values, labels = table(1)
    model = paceline.load(run.path)
    found = model.predict_proba(scipy.sparse.csr_matrix(values))[:, 1]
    z = values.astype(np.float64) @ model.weights[:3] + model.bias
    assert found == pytest.approx(1 / (1 + np.exp(-z)), abs=1e-3)
    loss = -np.log(np.where(labels, found, 1 - found)).mean()
    # Both have other scales than the training data, or none.
    for name, settings in {"scaled": {}, "plain": {"scale": "none"}}.items():
        _, quality = evaluate_model(run.path, prepared(tmp_path / name, values * 1.0, labels, **settings), "train")
        assert quality["loss"] == pytest.approx(loss, rel=1e-5)


def test_repeated_keys_of_a_raw_row_are_added(run: paceline.Run) -> None:
    once = scipy.sparse.csr_matrix(np.array([[30_000.0, 1_990.0, 1.0]]))
    twice = scipy.sparse.csr_matrix(([10_000.0, 20_000.0, 1_990.0, 1.0], [0, 0, 1, 2], [0, 4]), shape=(1, 3))
    model = paceline.load(run.path)
    assert model.predict_proba(twice) == pytest.approx(model.predict_proba(once))


def test_other_engines_and_a_resumed_run_have_the_same_bits(
    run: paceline.Run, data: Path, tmp_path: Path, ray_cluster: RayCluster
) -> None:
    cluster = paceline.train(
        data=data, run=tmp_path / "ray", engine="ray", address=ray_cluster.address, workers=1, pace="sync", epochs=20,
        batch_size=20,
    )  # fmt: skip
    assert cluster.result["model_sha256"] == run.result["model_sha256"]
    assert paceline.load(cluster.path).bias == paceline.load(run.path).bias


def test_a_users_model_gets_the_values_of_the_source(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unscaled_model.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    run = paceline.train(data=data, run=tmp_path / "run", model="unscaled_model:build", steps=1, learning_rate=1e-9)
    import unscaled_model  # type: ignore[import-not-found]

    assert max(unscaled_model.SEEN) > 10_000
    model = paceline.load(run.path, allow_code=True)
    unscaled_model.SEEN.clear()
    model.predict_proba(scipy.sparse.csr_matrix(table(1)[0]))
    assert max(unscaled_model.SEEN) > 10_000
