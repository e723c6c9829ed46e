"""Processes, nodes and connections are lost while a run trains; the run finishes, and nothing is lost with them."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline.wire.connection import connect
from paceline.wire.frames import RefusedError
from tests.faults.conftest import COUNTING, SYNC, Start, check_counts
from tests.faults.running import Running
from tests.ports import free_ports
from tests.ray_cluster import RayCluster
from tests.wire.hostile import harassed

LOSSES = {
    "a worker": [("worker", 1)],
    "a shard": [("shard", 0)],
    "a worker and a shard": [("worker", 0), ("shard", 1)],
    "two workers": [("worker", 0), ("worker", 1)],
    "both shards": [("shard", 0), ("shard", 1)],
}


def check_restarts(running: Running, workers: int, shards: int) -> None:
    """How long a recovery takes is measured by benchmarks/recovery.py."""
    assert running.result["restarts"] == {"workers": workers, "shards": shards}
    recovered = [recovery["role"] for recovery in running.result["recoveries"]]
    assert (recovered.count("worker"), recovered.count("shard")) == (workers, shards)


@pytest.mark.parametrize("lost", ["a worker", "a shard", "a worker and a shard"])
def test_killed_in_sync(start: Start, clicks: Path, undisturbed: paceline.Run, lost: str) -> None:
    running = start(clicks, shards=2, checkpoint_every=0.5, **SYNC)
    running.wait_for_metrics(2)
    running.kill(*LOSSES[lost])
    said = running.end()
    assert "was lost (its process ended)" in said
    assert "Traceback" not in said
    assert running.result["model_sha256"] == undisturbed.result["model_sha256"]
    assert running.result["rows"] == 240_000
    assert [line["rows"] for line in paceline.Run(running.path).metrics] == [40_000 * i for i in range(1, 7)]
    check_restarts(running, *[sum(role == kind for role, _ in LOSSES[lost]) for kind in ("worker", "shard")])


@pytest.mark.parametrize(
    ("pace", "lost"), [("async", "two workers"), ("async", "a worker and a shard"), (2, "a worker"), (2, "both shards")]
)
def test_killed_in_other_paces(start: Start, one_key_per_row: Path, pace: Any, lost: str) -> None:
    running = start(one_key_per_row, shards=2, pace=pace, checkpoint_every=0.3, **COUNTING)
    running.wait_for_metrics(2)
    running.kill(*LOSSES[lost])
    running.end()
    check_counts(running)
    check_restarts(running, *[sum(role == kind for role, _ in LOSSES[lost]) for kind in ("worker", "shard")])
    if pace == 2:
        assert running.result["max_staleness"] <= 2


def test_a_shard_lost_before_the_first_checkpoint(start: Start, clicks: Path, undisturbed: paceline.Run) -> None:
    running = start(clicks, shards=1, checkpoint_every=0, **SYNC)
    running.wait_for_metrics(1)
    running.kill(("shard", 0))
    assert "back to 0 rows" in running.end()
    assert running.result["model_sha256"] == undisturbed.result["model_sha256"]


def test_stopped_without_a_word(start: Start, clicks: Path, undisturbed: paceline.Run) -> None:
    """SIGSTOP: the process and its connections are there, but no heartbeat."""
    running = start(clicks, shards=1, **SYNC)
    running.wait_for_metrics(2)
    running.kill(("worker", 1), by=signal.SIGSTOP)
    assert "no heartbeat for 5 s" in running.end()
    assert running.result["model_sha256"] == undisturbed.result["model_sha256"]
    check_restarts(running, workers=1, shards=0)


def test_a_stopped_shard(start: Start, one_key_per_row: Path) -> None:
    """The first one: the coordinator talks to it most."""
    running = start(one_key_per_row, shards=2, pace="async", checkpoint_every=0.3, **COUNTING)
    running.wait_for_metrics(2)
    running.kill(("shard", 0), by=signal.SIGSTOP)
    running.end()
    check_counts(running)
    check_restarts(running, workers=0, shards=1)


@pytest.mark.parametrize("entry", ["cut_in_a_frame", "lose_a_reply"])
def test_broken_connections(start: Start, clicks: Path, undisturbed: paceline.Run, entry: str) -> None:
    running = start(clicks, shards=2, entry=entry, **SYNC)
    running.end()
    assert Path(f"{running.path}.fault").exists()
    assert running.result["model_sha256"] == undisturbed.result["model_sha256"]
    check_restarts(running, workers=0, shards=0)


@pytest.mark.parametrize("entry", ["cut_in_a_frame", "lose_a_reply"])
def test_broken_connections_count_nothing_twice(start: Start, one_key_per_row: Path, entry: str) -> None:
    running = start(one_key_per_row, shards=2, entry=entry, pace="async", **COUNTING)
    running.end()
    assert Path(f"{running.path}.fault").exists()
    check_counts(running)


def test_a_long_step_is_not_a_fault(start: Start, clicks: Path, undisturbed: paceline.Run) -> None:
    running = start(clicks, shards=1, entry="one_long_step", **SYNC)
    running.end()
    assert Path(f"{running.path}.fault").exists()
    assert running.result["train_seconds"] > 7
    assert running.result["model_sha256"] == undisturbed.result["model_sha256"]
    check_restarts(running, workers=0, shards=0)


def test_strangers_are_refused_and_counted(start: Start, clicks: Path, undisturbed: paceline.Run) -> None:
    running = start(clicks, shards=1, **SYNC)
    running.wait_for_metrics(1)
    address = next(role["address"] for role in running.roles if role["role"] == "shard")
    with pytest.raises(RefusedError):
        connect(address, b"not the token of this run", None)
    running.end()
    assert running.result["wire"]["refused"] == 1
    assert running.result["model_sha256"] == undisturbed.result["model_sha256"]
    check_restarts(running, workers=0, shards=0)


def test_a_run_starts_and_replaces_a_worker_beside_hostile_clients(
    start: Start, clicks: Path, undisturbed: paceline.Run
) -> None:
    """They need not know the token to reach the ports."""
    port = free_ports(2)
    with harassed(f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"):
        running = start(clicks, shards=1, set=f"wire.port={port}", **SYNC)
        running.wait_for_metrics(2)
        running.kill(("worker", 1))
        running.end()
    assert running.result["model_sha256"] == undisturbed.result["model_sha256"]
    assert running.result["wire"]["refused"] > 200
    check_restarts(running, workers=1, shards=0)


def test_a_standstill_is_explained(start: Start, clicks: Path) -> None:
    running = start(clicks, shards=1, entry="one_very_long_step", **{**SYNC, "epochs": 5})
    said = running.end()
    assert "no progress for 10 s: shard 0 holds back the reply to worker 1, waiting for worker 0" in said
    assert "worker 1 waits for shard 0, which waits for worker 0" in said


def test_the_bound_holds_with_a_slow_worker_and_across_its_loss(start: Start, one_key_per_row: Path) -> None:
    running = start(one_key_per_row, shards=2, entry="slow_worker", pace=2, **{**COUNTING, "test_every": 60_000})
    running.wait_for_metrics(1)
    running.kill(("worker", 0))
    running.end()
    assert running.result["max_staleness"] == 2
    check_counts(running)


def test_others_go_on_while_a_worker_sleeps(start: Start, one_key_per_row: Path) -> None:
    running = start(one_key_per_row, shards=1, pace="async", **{**COUNTING, "epochs": 20_000, "test_every": 0})
    running.wait_until(lambda: running.roles)
    pid = running.pid("shard", 0)
    running.kill(("worker", 0), by=signal.SIGSTOP)
    before = time_used(pid)
    running.wait_until(lambda: time_used(pid) - before > 0.2)
    running.kill(("worker", 0), by=signal.SIGCONT)
    running.process.send_signal(signal.SIGINT)
    assert "a checkpoint is saved" in running.end(130)
    assert running.result["restarts"] == {"workers": 0, "shards": 0}


def time_used(pid: int) -> float:
    """Processor time of a process, in seconds: a shard works only when workers push."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


@pytest.fixture
def three_nodes() -> Any:
    cluster = RayCluster(head_cpus=2)
    try:
        for name in ("left", "right"):
            cluster.add_node(2, name)
        yield cluster
    finally:
        cluster.close()


class TestNodes:
    def test_a_lost_node_is_replaced_where_there_is_room_and_else_named(
        self, start: Start, clicks: Path, undisturbed: paceline.Run, three_nodes: RayCluster
    ) -> None:
        flags = {**SYNC, "epochs": 40, "checkpoint_every": 0.5}
        running = start(clicks, three_nodes, shards=1, **flags)
        running.wait_for_metrics(1)
        roles = [role for role in running.roles if role["role"] != "coordinator"]
        assert {role["node"] for role in roles} == {"head", "left", "right"}
        lost = next(role for role in roles if role["node"] == "right")
        three_nodes.nodes[2].kill()
        running.end()
        assert running.result["model_sha256"] == undisturbed.result["model_sha256"]
        check_restarts(running, *((1, 0) if lost["role"] == "worker" else (0, 1)))

        flags["epochs"] = 4_000
        running = start(clicks, three_nodes, **{**flags, "workers": 3})
        running.wait_for_metrics(1)
        on_left = [role for role in running.roles if role["node"] == "left"]
        three_nodes.nodes[1].kill()
        said = running.end(1)
        assert any(f"{role['role']} {role['rank']} on node left was lost" in said for role in on_left)
        assert "2 processors left; 4 are needed" in said


def test_the_coordinator_is_killed_and_the_run_resumed(
    start: Start, clicks: Path, undisturbed: paceline.Run, ray_cluster: RayCluster
) -> None:
    running = start(clicks, shards=2, checkpoint_every=0.3, **SYNC)
    running.wait_for_metrics(2)
    running.wait_for_checkpoint()
    pids = [role["pid"] for role in running.roles]
    running.process.kill()
    running.process.communicate()
    deadline = time.monotonic() + 15
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "roles outlive their coordinator"
        time.sleep(0.1)
    resumed = Running(ray_cluster, ["resume", running.path], running.path)
    resumed.end()
    assert resumed.result["model_sha256"] == undisturbed.result["model_sha256"]
    assert resumed.result["rows"] == 240_000
    assert json.loads((running.path / "roles.json").read_text()) == []


def test_interrupted_and_resumed_after_a_loss(
    start: Start, clicks: Path, undisturbed: paceline.Run, ray_cluster: RayCluster
) -> None:
    """What was counted before is still in the result; another address of the cluster will do."""
    running = start(clicks, shards=1, **SYNC)
    running.wait_for_metrics(1)
    running.kill(("worker", 0))
    running.wait_until(lambda: any(role["incarnation"] for role in running.roles))
    running.process.send_signal(signal.SIGINT)
    running.end(130)
    before = running.result
    assert before["restarts"] == {"workers": 1, "shards": 0}
    resumed = Running(ray_cluster, ["resume", running.path, "--address", ray_cluster.address], running.path)
    resumed.end()
    assert resumed.result["model_sha256"] == undisturbed.result["model_sha256"]
    assert resumed.result["restarts"] == {"workers": 1, "shards": 0}
    assert resumed.result["recoveries"] == before["recoveries"]
    assert resumed.result["wire"]["bytes_sent"] > before["wire"]["bytes_sent"]


@pytest.mark.parametrize("pace", ["async", 2])
def test_killed_coordinators_count_nothing_twice(
    start: Start, one_key_per_row: Path, ray_cluster: RayCluster, pace: Any
) -> None:
    running = start(one_key_per_row, shards=2, pace=pace, checkpoint_every=0.2, **COUNTING)
    running.wait_for_metrics(2)
    running.wait_until(lambda: (running.path / "checkpoints" / "latest").exists())
    running.process.kill()
    running.process.communicate()
    resumed = Running(ray_cluster, ["resume", running.path], running.path)
    resumed.end()
    check_counts(resumed)
