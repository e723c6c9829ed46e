"""Two halves in turn give the bits of one run over both, whatever the model, the optimizer and the engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.dataset import sparse_writer
from tests.conftest import small_blocks
from tests.ray_cluster import RayCluster

ROWS, FEATURES, NONZEROS = 800, 300, 4
HALVES: dict[str, Any] = {"pace": "sync", "workers": 2, "batch_size": 50, "epochs": 1, "shuffle": False}
FIELDS = tuple("abcd")


def rows_of(kind: str) -> Batch:
    """Rows in which each key belongs to one field, whose labels follow from their keys."""
    chance = np.random.default_rng(3)
    fields = np.tile(np.arange(NONZEROS, dtype=np.uint16), ROWS)
    keys = chance.integers(0, FEATURES // NONZEROS, ROWS * NONZEROS) * NONZEROS + fields
    sums = (keys % 7).reshape(ROWS, NONZEROS).sum(axis=1)
    labels = {
        "two-classes": (sums > 12).astype(np.uint8), "classes": (sums % 3).astype(np.uint16),
        "numbers": (100 * sums).astype(np.float32),
    }[kind]  # fmt: skip
    values = np.ones(len(keys), np.float32)
    return Batch(labels, np.arange(0, len(keys) + 1, NONZEROS), keys.astype(np.uint32), values, None, fields)


@pytest.fixture(scope="module", params=["two-classes"])
def halves(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two datasets and one of both. The rows of the second are those of the first in another order, so that the same
    keys are hot in all three.
    """
    folder = tmp_path_factory.mktemp("halves")
    first = rows_of(request.param)
    order = np.random.default_rng(4).permutation(ROWS)
    second = first.slice(0, ROWS)
    keys, fields = (part.reshape(ROWS, NONZEROS)[order].ravel() for part in (first.keys, first.fields))
    second = second._replace(labels=first.labels[order], keys=keys, fields=fields)
    for name, parts in (("first", [first]), ("second", [second]), ("both", [first, second])):
        writer = sparse_writer(folder / name, features=FEATURES, source={}, labels=request.param, fields=FIELDS)
        with small_blocks(300), writer:
            for part in parts:
                writer.add("train", part.copy())
            writer.finish()
    return {name: folder / name for name in ("first", "second", "both")}


def assert_same_bits(tmp_path: Path, halves: dict[str, Path], **flags: Any) -> None:
    once = paceline.train(data=halves["both"], run=tmp_path / "once", progress=False, **HALVES | flags)
    first = paceline.train(data=halves["first"], run=tmp_path / "first", progress=False, **HALVES | flags)
    second = paceline.train(data=halves["second"], start_from=first, run=tmp_path / "second", progress=False)
    assert first.result["model_sha256"] != once.result["model_sha256"]
    assert second.result["model_sha256"] == once.result["model_sha256"]
    assert second.result["from"] == str(first.path)
    assert (second.result["rows_before"], second.result["rows"]) == (ROWS, ROWS)
    state = [paceline.load(run.path).info.sha256 for run in (once, second)]
    assert state[0] == state[1]


SGD = {"optimizer": "sgd", "settings": ["optimizer.decay_rows=500"]}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("flags", [SGD, {"optimizer": "adagrad"}, {"optimizer": "ftrl", "l1": 0.01},
                                   {"model": "fm", "dim": 4}], ids=["sgd", "adagrad", "ftrl", "fm"])  # fmt: skip
def test_embedded(tmp_path: Path, halves: dict[str, Path], workers: int, flags: dict[str, Any]) -> None:
    assert_same_bits(tmp_path, halves, workers=workers, **flags)


@pytest.mark.parametrize("model", ["fwfm", "ffm"])
def test_models_with_fields(tmp_path: Path, halves: dict[str, Path], model: str) -> None:
    assert_same_bits(tmp_path, halves, model=model, dim=2)


@pytest.mark.parametrize("halves", ["classes"], indirect=True)
def test_several_classes(tmp_path: Path, halves: dict[str, Path]) -> None:
    assert_same_bits(tmp_path, halves, class_weight="balanced")


@pytest.mark.parametrize("halves", ["numbers"], indirect=True)
@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_numbers(tmp_path: Path, halves: dict[str, Path], loss: str) -> None:
    assert_same_bits(tmp_path, halves, loss=loss)


@pytest.mark.parametrize("flags", [{"optimizer": "ftrl", "shards": 2}, {"model": "fm", "dim": 4, "workers": 1},
                                   {"model": "fwfm", "dim": 2}], ids=["ftrl", "fm", "fwfm"])  # fmt: skip
def test_on_a_cluster(tmp_path: Path, halves: dict[str, Path], ray_cluster: RayCluster, flags: dict[str, Any]) -> None:
    assert_same_bits(tmp_path, halves, engine="ray", address=ray_cluster.address, **flags)


def test_adam_counts_its_updates_on(tmp_path: Path, drawings: Path) -> None:
    """Images: two epochs in the order of the data are one epoch twice."""
    flags: dict[str, Any] = {
        "model": "softmax",
        "pace": "sync",
        "batch_size": 70,
        "optimizer": "adam",
        "shuffle": False,
    }
    twice = paceline.train(data=drawings, run=tmp_path / "twice", epochs=2, progress=False, **flags)
    once = paceline.train(data=drawings, run=tmp_path / "once", epochs=1, progress=False, **flags)
    again = paceline.train(data=drawings, start_from=once, run=tmp_path / "again", progress=False)
    assert again.result["model_sha256"] == twice.result["model_sha256"]


def test_three_runs_in_a_row(tmp_path: Path, halves: dict[str, Path]) -> None:
    """How far a model was trained adds up, and settings are handed on."""
    run = paceline.train(data=halves["first"], run=tmp_path / "0", progress=False, learning_rate=0.1, **HALVES)
    for number in (1, 2):
        run = paceline.train(data=halves["second"], start_from=run.path, run=tmp_path / f"{number}", progress=False)
    assert run.result["rows_before"] == 2 * ROWS
    assert run.config.optimizer.learning_rate == 0.1
    assert json.loads((run.path / "model" / "model.json").read_text())["training"]["rows"] == 3 * ROWS
