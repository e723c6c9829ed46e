"""What a run gets that nobody asked for: plain values, which suit the model, the engine and the machine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from paceline.config import config_of, settings_of_run

CORES = 16


@pytest.fixture(autouse=True)
def many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.engines.num_cores", lambda: CORES)


@pytest.mark.parametrize(
    ("flags", "pace", "workers", "batch_size"),
    [
        ({}, "async", 16, 1),
        ({"workers": 1}, "async", 1, 1),
        ({"pace": "sync"}, "sync", 16, 100),
        ({"pace": 4}, 4, 16, 100),
        ({"batch_size": 7}, "async", 16, 7),
        ({"engine": "ray"}, "async", 15, 1000),
        ({"engine": "ray", "shards": 4, "pace": "sync"}, "sync", 12, 1000),
        ({"engine": "ray", "shards": 40}, "async", 1, 1000),
        ({"model": "softmax"}, "async", 16, 100),
        ({"model": "alexnet-small"}, "sync", 1, 100),
        ({"model": "alexnet-small", "device": "cuda"}, "sync", 1, 100),
        ({"model": "alexnet-small", "engine": "ray", "exchange": "allreduce"}, "sync", 15, 32),
        ({"device": "cuda"}, "async", 1, 65_536),
        ({"device": "cuda", "engine": "ray"}, "async", 1, 10_000),
        ({"device": "cuda", "engine": "ray", "workers": 4, "pace": 3}, 3, 4, 10_000),
        ({"device": "cuda", "engine": "ray", "model": "alexnet-small"}, "sync", 1, 32),
    ],
)
def test_what_is_not_given_is_chosen(flags: dict[str, Any], pace: str | int, workers: int, batch_size: int) -> None:
    config = config_of({"data": "d"}, flags)
    assert (config.pace, config.workers, config.batch_size) == (pace, workers, batch_size)


@pytest.mark.parametrize(
    ("rows", "flags", "batch_size"),
    [
        (6_500, {"pace": "sync"}, 13),  # 500 updates per epoch
        (6_500, {"engine": "ray"}, 13),
        (6_500, {"pace": "sync", "workers": 2}, 6),
        (35_000, {"pace": "sync"}, 23),  # three workers
        (450, {"pace": 4}, 4),
        (450, {"model": "fwfm"}, 20),
        (10**6, {"pace": "sync", "workers": 2}, 100),
        (10**6, {"engine": "ray", "workers": 2}, 1000),
        (10**6, {"engine": "ray"}, 1000),  # 15 workers
        (200_000, {"pace": "sync"}, 100),
        (450, {}, 1),
        (6_500, {"pace": "sync", "batch_size": 70}, 70),
        (6_500, {"pace": "sync", "train_rows": 2_500}, 5),
        (6_500, {"model": "softmax"}, 100),
        (6_500, {"device": "cuda", "pace": "async"}, 65_536),
        (6_500, {"device": "cuda", "engine": "ray"}, 13),
        # As many as on the CPU, and more with 500 updates per epoch.
        (10**6, {"device": "cuda", "engine": "ray", "workers": 4}, 1000),
        (10**7, {"device": "cuda", "engine": "ray", "workers": 4}, 5000),
        (10**8, {"device": "cuda", "engine": "ray", "workers": 4}, 10_000),
    ],
)
def test_small_data_has_small_batches(tmp_path: Path, rows: int, flags: dict[str, Any], batch_size: int) -> None:
    assert config_of(manifest(tmp_path, rows, 30), flags).batch_size == batch_size


@pytest.mark.parametrize(("train_rows", "workers"), [(6_000, 1), (35_000, 3), (10**6, 16)])
def test_small_data_has_fewer_workers(tmp_path: Path, train_rows: int, workers: int) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"train": {"rows": train_rows, "blocks": []}}))
    assert config_of({"data": str(tmp_path)}, {}).workers == workers
    assert config_of({"data": str(tmp_path)}, {"train_rows": 500}).workers == 1
    assert config_of({"data": str(tmp_path)}, {"workers": 16}).workers == 16


def test_a_manifest_that_cannot_be_read_is_left_to_the_run(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{")
    assert config_of({"data": str(tmp_path)}, {}).workers == CORES


def test_a_manifest_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.json")
    assert config_of({"data": str(tmp_path)}, {}).workers == CORES


def test_a_manifest_that_claims_to_be_huge_does_not_fill_the_memory(tmp_path: Path) -> None:
    with (tmp_path / "manifest.json").open("wb") as file:
        file.truncate(1 << 40)
    assert config_of({"data": str(tmp_path)}, {}).workers == CORES


def test_a_recipe_gives_settings_too() -> None:
    config = config_of({"data": "d", "workers": 3}, {}, ["batch_size=9"], {"pace": 2})
    assert (config.pace, config.workers, config.batch_size) == (2, 3, 9)


def test_the_cores_of_a_cluster_are_counted_there(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def count(address: str) -> int:
        asked.append(address)
        return 64

    monkeypatch.setattr("paceline.engines.ray.count_free_cores", count)
    cluster = {"engine": "ray", "address": "10.0.0.1:6379"}
    assert config_of({"data": "d"}, {**cluster, "shards": 2}).workers == 62
    assert asked == ["10.0.0.1:6379"]
    assert config_of({"data": "d"}, {**cluster, "workers": 2}).workers == 2
    assert len(asked) == 1


def test_a_run_folder_means_what_it_meant() -> None:
    """What an older version left out is not chosen by this machine."""
    config = settings_of_run({"data": "d"})
    assert (config.pace, config.workers, config.batch_size) == ("sync", 1, 100)


def manifest(folder: Path, rows: int, keys: int, validation: int = 0) -> dict[str, Any]:
    """A recipe for data like this."""
    splits = {"train": {"rows": rows}, "validation": {"rows": validation}}
    (folder / "manifest.json").write_text(json.dumps(splits | {"hot_keys": list(range(keys))}))
    return {"data": str(folder)}


@pytest.mark.parametrize(
    ("rows", "keys", "epochs"),
    [
        (6_513, 117, 30),  # all that the model learns from
        (457, 30, 116),  # half the square of the rows per key
        (180, 60, 4),
        (1_803, 12_102, 2),  # many keys for few rows
        (72_092, 65_536, 2),
        (150_000, 10, 1),
        (1_000_000, 65_536, 1),
    ],
)
def test_small_data_is_repeated_as_long_as_that_helps(tmp_path: Path, rows: int, keys: int, epochs: int) -> None:
    recipe = manifest(tmp_path, rows, keys)
    assert config_of(dict(recipe), {}).epochs == epochs
    assert config_of(dict(recipe), {"epochs": 3}).epochs == 3
    assert config_of(dict(recipe), {"steps": 3}).epochs == 0
    assert config_of(dict(recipe), {"model": "alexnet-small"}).epochs == 1
    assert config_of(dict(recipe), {}).test_every == 0
    assert config_of({"data": "elsewhere"}, {}).epochs == 1


@pytest.mark.parametrize("model", ["fm", "fwfm", "ffm"])
def test_factors_learn_small_data_in_fewer_epochs(tmp_path: Path, model: str) -> None:
    assert config_of(manifest(tmp_path, 457, 30), {"model": model}).epochs == 38
    assert config_of(manifest(tmp_path, 400, 4), {"model": model}).epochs == 500
    assert config_of(manifest(tmp_path, 10**6, 4), {"model": model}).epochs == 1


def test_validation_rows_are_looked_at_more_than_once(tmp_path: Path) -> None:
    recipe = manifest(tmp_path, 457, 30, validation=50)
    assert config_of(dict(recipe), {}).test_every == 5 * 457
    assert config_of(dict(recipe), {"seconds": 5}).test_every == 457
    assert config_of(dict(recipe), {"test_every": 9}).test_every == 9
    patient = config_of(dict(recipe), {"early_stopping": 2})
    assert (patient.epochs, patient.test_every) == (116, 457)
    long = config_of(manifest(tmp_path, 6_513, 117, validation=50), {"early_stopping": 2})
    assert long.epochs == 100
