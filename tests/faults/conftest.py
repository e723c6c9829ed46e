"""Runs on a cluster that are ended with the test, and what they should come to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from tests.faults.running import Running
from tests.ray_cluster import RayCluster

SYNC: dict[str, Any] = {"pace": "sync", "workers": 2, "batch_size": 20, "epochs": 40, "test_every": 40_000, "seed": 1}
RATE = 2.0**-40
# 997 rows with one key each: batches have 64 rows, except one of 37 per epoch.
COUNTING: dict[str, Any] = {"workers": 3, "batch_size": 64, "epochs": 240, "test_every": 20_000, "optimizer": "sgd",
                            "learning_rate": RATE}  # fmt: skip

Start = Callable[..., Running]


def arguments(**flags: Any) -> list[Any]:
    return [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", value)]


@pytest.fixture
def start(tmp_path: Path, ray_cluster: RayCluster) -> Iterator[Start]:
    """Start `paceline train --engine ray` in the background; `entry` is one of roles.py."""
    started: list[Running] = []

    def begin(data: Path, cluster: RayCluster = ray_cluster, entry: str = "", **flags: Any) -> Running:
        path = tmp_path / f"run-{len(started)}"
        words = ["train", *arguments(engine="ray", address=cluster.address, data=data, run=path, **flags)]
        started.append(Running(cluster, words, path, entry))
        return started[-1]

    yield begin
    for running in started:
        running.close()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, clicks: Path) -> paceline.Run:
    """What SYNC comes to when nothing happens: embedded."""
    return paceline.train(data=clicks, run=tmp_path_factory.mktemp("undisturbed") / "run", **SYNC)


def check_counts(running: Running) -> None:
    """Every row of every epoch counts once: all weights are what they must be, to the bit."""
    run = paceline.Run(running.path)
    assert run.result["rows"] == 240 * 997
    visits = np.abs(paceline.load(run.path).weights.astype(np.float64)) / (RATE / 2)
    # A row counts 1/64 in each epoch, but 1/37 in those where it is in the short last batch.
    short = (visits - 240 / 64) / (1 / 37 - 1 / 64)
    np.testing.assert_allclose(short, short.round(), atol=1e-3)
    assert short.round().sum() == 240 * 37
    assert short.min() > -0.01
