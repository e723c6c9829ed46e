"""A dense model's roles are lost while it trains: all return to the last checkpoint, and the run finishes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import paceline
from tests.faults.conftest import Start
from tests.faults.running import Running
from tests.ray_cluster import RayCluster

SOFTMAX: dict[str, Any] = {
    "model": "softmax", "pace": "sync", "workers": 2, "batch_size": 10, "epochs": 60, "optimizer": "sgd",
    "learning_rate": 0.02, "momentum": 0.9, "test_every": 6_000, "seed": 1,
}  # fmt: skip
MODULE: dict[str, Any] = {**SOFTMAX, "model": "tests.models.modules:plain", "epochs": 12}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, drawings: Path) -> paceline.Run:
    return paceline.train(data=drawings, run=tmp_path_factory.mktemp("undisturbed") / "run", **SOFTMAX)


@pytest.mark.parametrize("shared_memory", ["true", "false"])
def test_in_sync_the_bits_are_those_of_an_undisturbed_run(
    start: Start, drawings: Path, undisturbed: paceline.Run, shared_memory: str
) -> None:
    how = f"wire.shared_memory={shared_memory}"
    running = start(drawings, shards=2, checkpoint_every=0.3, set=how, **SOFTMAX)
    running.wait_for_checkpoint()
    running.wait_for_metrics(2)
    running.kill(("worker", 1))
    said = running.end()
    assert "back to" in said
    assert "Traceback" not in said
    assert running.result["model_sha256"] == undisturbed.result["model_sha256"]
    assert running.result["rows"] == 60 * 1_500
    assert running.result["restarts"] == {"workers": 1, "shards": 0}


def test_at_other_paces_every_row_counts(start: Start, drawings: Path) -> None:
    running = start(drawings, shards=2, checkpoint_every=0.3, **{**SOFTMAX, "pace": "async"})
    running.wait_for_checkpoint()
    running.wait_for_metrics(2)
    running.kill(("shard", 1))
    assert "back to" in running.end()
    assert running.result["rows"] == 60 * 1_500
    assert running.result["restarts"] == {"workers": 0, "shards": 1}
    assert running.result["test"]["accuracy"] > 0.75


def test_a_group_that_adds_up_starts_again_from_the_checkpoint(start: Start, drawings: Path, tmp_path: Path) -> None:
    local = paceline.train(data=drawings, run=tmp_path / "local", **MODULE)
    running = start(drawings, exchange="allreduce", checkpoint_every=0.3, **MODULE)
    running.wait_for_checkpoint()
    running.wait_for_metrics(1)
    running.kill(("worker", 1))
    assert "back to" in running.end()
    assert running.result["rows"] == 12 * 1_500
    assert running.result["restarts"]["workers"] == 1
    found, expected = (
        safetensors.numpy.load_file(path / "model" / "model.safetensors") for path in (running.path, local.path)
    )
    assert found.keys() == expected.keys() != set()
    for name, tensor in expected.items():
        np.testing.assert_allclose(found[name], tensor, atol=0.02 * np.abs(tensor).max())


@pytest.mark.parametrize(
    "flags",
    [
        {**SOFTMAX, "pace": "sync", "shards": 2},
        {**SOFTMAX, "pace": "async", "shards": 2, "set": "wire.shared_memory=false"},
        {**MODULE, "pace": "sync", "exchange": "allreduce"},
    ],
)
def test_killed_and_resumed(
    start: Start, drawings: Path, undisturbed: paceline.Run, ray_cluster: RayCluster, flags: dict[str, Any]
) -> None:
    """From the last checkpoint, which was made while workers went on."""
    running = start(drawings, checkpoint_every=0.2, **flags)
    running.wait_for_checkpoint()
    running.process.kill()
    running.process.communicate()
    code = ["--model", flags["model"]] if ":" in flags["model"] else []
    resumed = Running(ray_cluster, ["resume", running.path, *code], running.path)
    resumed.end()
    assert resumed.result["rows"] == flags["epochs"] * 1_500
    assert resumed.result["test"]["accuracy"] > 0.75
    if flags["pace"] == "sync" and flags["model"] == "softmax":
        assert resumed.result["model_sha256"] == undisturbed.result["model_sha256"]
