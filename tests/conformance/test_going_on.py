"""Two halves in turn give the bits of one run over both, whatever the model, the optimizer and the engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.dataset import SparseDataset, sparse_writer
from tests.conftest import small_blocks
from tests.data.inputs import criteo_row
from tests.ray_cluster import RayCluster

ROWS, FEATURES, NONZEROS = 800, 300, 4
HALVES: dict[str, Any] = {"pace": "sync", "workers": 2, "batch_size": 50, "epochs": 1, "shuffle": False}
FIELDS = tuple("abcd")


def rows_of(kind: str, day: int) -> Batch:
    """Rows in which each key belongs to one field. Some keys are only in the rows of one day, and others are frequent
    on each, but both days have as many rows of each label.
    """
    chance = np.random.default_rng(day)
    fields = np.tile(np.arange(NONZEROS, dtype=np.uint16), ROWS)
    places = (50 * chance.random(ROWS * NONZEROS) ** 2).astype(np.int64) + 25 * day
    keys = places * NONZEROS + fields
    labels = chance.permutation(ROWS) % 5
    found: Any = {
        "two-classes": (labels > 2).astype(np.uint8), "classes": (labels % 3).astype(np.uint16),
        "numbers": (100 * labels).astype(np.float32),
    }[kind]  # fmt: skip
    values = np.ones(len(keys), np.float32)
    return Batch(found, np.arange(0, len(keys) + 1, NONZEROS), keys.astype(np.uint32), values, None, fields)


@pytest.fixture(scope="module", params=["two-classes"])
def halves(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Datasets of two days, and one of both."""
    folder = tmp_path_factory.mktemp("halves")
    days = [rows_of(request.param, day) for day in range(2)]
    for name, parts in (("first", days[:1]), ("second", days[1:]), ("both", days)):
        writer = sparse_writer(folder / name, features=FEATURES, source={}, labels=request.param, fields=FIELDS)
        with small_blocks(300), writer:
            for part in parts:
                writer.add("train", part.copy())
            writer.finish()
    return checked_halves(folder)


@pytest.fixture(scope="module")
def hashed_halves(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same of hashed columns, whose second day brings new values."""
    folder = tmp_path_factory.mktemp("hashed")
    for day, name in enumerate(("first", "second")):
        chance = np.random.default_rng(day)
        lines = [criteo_line(chance, day) for _ in range(ROWS)]
        (folder / f"{name}.tsv").write_text("".join(lines))
    sources = {"first": ["first"], "second": ["second"], "both": ["first", "second"]}
    for name, days in sources.items():
        files = [folder / f"{day}.tsv" for day in days]
        paceline.prepare(files, folder / name, format="criteo", hash_bits=12, fields=True, scale="none", progress=False)
    return checked_halves(folder)


def criteo_line(chance: np.random.Generator, day: int) -> str:
    numbers = [str(number) if number < 40 else "" for number in chance.integers(0, 50, 13)]
    values = [f"{int(50 * number**2) + 25 * day:x}" if number > 0.1 else "" for number in chance.random(26)]
    return criteo_row(str(chance.integers(2)), numbers, values)


def checked_halves(folder: Path) -> dict[str, Path]:
    """The paths of three datasets. Most of the hottest keys differ between days, and each day has keys of its own."""
    found = {name: folder / name for name in ("first", "second", "both")}
    first, second, both = (SparseDataset(path).manifest.hot_keys for path in found.values())
    assert len(set(first[:100]) & set(second[:100])) < 50
    assert set(first) - set(second)
    assert set(second) - set(first)
    assert set(both) == {*first, *second}
    return found


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
MACHINES: tuple[dict[str, Any], ...] = (
    {"model": "fm", "dim": 4}, {"model": "fwfm", "dim": 2}, {"model": "ffm", "dim": 2}
)  # fmt: skip


def name_of(flags: dict[str, Any]) -> str:
    return str(flags.get("model") or flags.get("optimizer") or "linear")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("flags", [SGD, {"optimizer": "adagrad"}, {"optimizer": "ftrl", "l1": 0.01}, *MACHINES],
                         ids=name_of)  # fmt: skip
def test_embedded(tmp_path: Path, halves: dict[str, Path], workers: int, flags: dict[str, Any]) -> None:
    assert_same_bits(tmp_path, halves, workers=workers, **flags)


@pytest.mark.parametrize("flags", [{}, *MACHINES], ids=name_of)
def test_hashed_keys(tmp_path: Path, hashed_halves: dict[str, Path], flags: dict[str, Any]) -> None:
    assert_same_bits(tmp_path, hashed_halves, **flags)


def test_keys_beyond_those_of_the_first_model(tmp_path: Path) -> None:
    """Plain indices, as LIBSVM files have them: the second day has more features."""
    days = [rows_of("two-classes", day) for day in range(2)]
    for name, parts in (("first", days[:1]), ("second", days[1:]), ("both", days)):
        with sparse_writer(tmp_path / name, features=None, source={}, fields=FIELDS) as writer:
            for part in parts:
                writer.add("train", part.copy())
            writer.finish()
    found = checked_halves(tmp_path)
    assert SparseDataset(found["first"]).features < SparseDataset(found["both"]).features
    assert_same_bits(tmp_path / "runs", found, model="fm", dim=4)


@pytest.mark.parametrize("halves", ["classes"], indirect=True)
def test_several_classes(tmp_path: Path, halves: dict[str, Path]) -> None:
    assert_same_bits(tmp_path, halves, class_weight="balanced")


@pytest.mark.parametrize("halves", ["numbers"], indirect=True)
@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_numbers(tmp_path: Path, halves: dict[str, Path], loss: str) -> None:
    assert_same_bits(tmp_path, halves, loss=loss)


@pytest.mark.parametrize("flags", [{"optimizer": "ftrl", "shards": 2}, MACHINES[0] | {"workers": 1},
                                   MACHINES[1] | {"shards": 2}, MACHINES[2]], ids=name_of)  # fmt: skip
def test_on_a_cluster(tmp_path: Path, halves: dict[str, Path], ray_cluster: RayCluster, flags: dict[str, Any]) -> None:
    assert_same_bits(tmp_path, halves, engine="ray", address=ray_cluster.address, **flags)


@pytest.mark.parametrize("shards", [1, 3])
def test_shards_draw_the_factors_of_one_process(
    tmp_path: Path, halves: dict[str, Path], ray_cluster: RayCluster, shards: int
) -> None:
    flags = HALVES | MACHINES[0] | {"data": halves["second"], "progress": False}
    here = paceline.train(run=tmp_path / "here", **flags)
    there = paceline.train(run=tmp_path / "there", engine="ray", address=ray_cluster.address, shards=shards, **flags)
    assert here.result["model_sha256"] == there.result["model_sha256"]


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
