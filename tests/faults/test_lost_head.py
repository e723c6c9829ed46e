"""Ray's head is lost: the run notices it, saves a checkpoint, and says what to do."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import paceline
from tests.faults.conftest import SYNC, Start
from tests.faults.running import Running
from tests.ray_cluster import RayCluster


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    """A head without processors: what runs, runs on another node."""
    cluster = RayCluster(head_cpus=0)
    try:
        yield cluster
    finally:
        cluster.close()


def lose_head(cluster: RayCluster, running: Running) -> str:
    """Kill the head; what the command says until it has failed."""
    family = psutil.Process(cluster.nodes[0].process.pid).children(recursive=True)
    (head,) = [process for process in family if process.name() == "gcs_server"]
    os.kill(head.pid, signal.SIGKILL)
    began = time.monotonic()
    said = running.end(1, seconds=40)
    assert time.monotonic() - began < 30
    assert said.count("error: ") == 1
    assert "gcs" not in said.lower(), "Ray has its say"
    assert "Traceback" not in said
    assert running.result["status"] == "failed"
    assert "no longer answers" in running.result["error"]
    return said


def test_a_run_saves_a_checkpoint_and_continues_elsewhere(
    start: Start, clicks: Path, undisturbed: paceline.Run, cluster: RayCluster, ray_cluster: RayCluster
) -> None:
    cluster.add_node(3, "other")
    running = start(clicks, cluster, entry="slow_worker", shards=1, checkpoint_every=0, **SYNC)
    running.wait_until(lambda: running.roles)
    error, hint = lose_head(cluster, running).splitlines()[-2:]
    assert re.match(rf"error: Ray's head at \S+:{cluster.port} no longer answers: stopped after ", error)
    assert error.endswith(" rows; a checkpoint is saved")
    assert hint == f"hint: `paceline resume {running.path}` continues it"
    assert running.result["rows"] > 0
    resumed = Running(ray_cluster, ["resume", running.path, "--address", ray_cluster.address], running.path)
    resumed.end()
    assert resumed.result["model_sha256"] == undisturbed.result["model_sha256"]


def test_a_run_whose_processes_are_lost_too_continues_from_its_last_checkpoint(
    start: Start, clicks: Path, undisturbed: paceline.Run, cluster: RayCluster, ray_cluster: RayCluster
) -> None:
    other = cluster.add_node(3, "other")
    running = start(clicks, cluster, entry="slow_worker", shards=1, checkpoint_every=0.2, **SYNC)
    running.wait_for_checkpoint()
    other.kill()
    error = lose_head(cluster, running).splitlines()[-2]
    assert re.search(r" 0 on node other was lost .*Ray's head at \S+ no longer answers", error)
    resumed = Running(ray_cluster, ["resume", running.path, "--address", ray_cluster.address], running.path)
    resumed.end()
    assert resumed.result["model_sha256"] == undisturbed.result["model_sha256"]
