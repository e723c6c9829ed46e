"""A Ray of its own, or a running one: started, joined, left; and what cannot be."""

from __future__ import annotations

import os
import signal
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import paceline
from paceline.errors import ConfigError
from tests.faults.conftest import arguments
from tests.faults.running import Running
from tests.ports import free_ports
from tests.ray_cluster import RayCluster
from tests.skips import needs_no_gpu


class TestOwnRay:
    """Without an address: nothing is left behind, however it ends."""

    @pytest.fixture
    def temporary(self) -> Path:
        # Short: Ray's sockets lie below it, and their names may not be long.
        return Path(tempfile.mkdtemp(prefix="plt-", dir="/tmp"))

    @pytest.fixture
    def begin(self, tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
        home = tmp_path / "home"
        home.mkdir()
        started: list[Running] = []

        def run(data: Path, entry: str = "", **flags: Any) -> Running:
            path = tmp_path / "run"
            words = ["train", *arguments(data=data, engine="ray", run=path, **flags)]
            with monkeypatch.context() as patch:
                patch.setenv("XDG_CACHE_HOME", os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"))
                patch.setenv("HOME", str(home))
                patch.setenv("TMPDIR", str(temporary))
                started.append(Running(None, words, path, entry))
            return started[-1]

        yield run
        (running,) = started
        assert running.process.poll() is not None
        # All processes of the run are in its session.
        deadline = time.monotonic() + 25
        while left := [
            *(p for p in psutil.process_iter() if session_of(p) == running.process.pid), *temporary.iterdir()
        ]:  # fmt: skip
            assert time.monotonic() < deadline, left
            time.sleep(0.1)
        temporary.rmdir()
        assert not list(home.glob(".ray/*")), "a token was left in the user's home"

    def test_done(self, begin: Any, clicks: Path, tmp_path: Path) -> None:
        flags: dict[str, Any] = {"workers": 2, "pace": "sync", "batch_size": 100}
        local = paceline.train(data=clicks, run=tmp_path / "local", **flags)
        running = begin(clicks, shards=2, **flags)
        assert f"run: {running.path}" in running.end()
        assert running.result["model_sha256"] == local.result["model_sha256"]

    def test_a_token_that_is_asked_for_and_missing(
        self, begin: Any, clicks: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
            monkeypatch.delenv(name, raising=False)
        begin(clicks, workers=1).end()

    def test_failed(self, begin: Any, clicks: Path) -> None:
        running = begin(clicks, entry="bug_in_a_worker", workers=2)
        said = running.end(1)
        assert "worker 0 on node" in said
        assert "ZeroDivisionError: division by zero (roles.py, line" in said

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_interrupted(self, begin: Any, clicks: Path, temporary: Path, number: signal.Signals) -> None:
        running = begin(clicks, workers=2, epochs=100_000, batch_size=20)
        running.wait_until(lambda: running.roles)
        (folder,) = temporary.iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, "others can look into Ray's folder"
        time.sleep(0.5)
        # As a terminal does it: to all processes of the group.
        os.killpg(running.process.pid, number) if number == signal.SIGINT else running.process.send_signal(number)
        assert "a checkpoint is saved" in running.end(130)

    @pytest.mark.parametrize("signals", [[signal.SIGKILL], [signal.SIGINT, signal.SIGINT]], ids=["killed", "twice"])
    def test_ended_at_once(self, begin: Any, clicks: Path, signals: list[signal.Signals]) -> None:
        running = begin(clicks, workers=2, epochs=100_000, batch_size=20)
        running.wait_until(lambda: running.roles)
        for number in signals:
            running.process.send_signal(number)
            time.sleep(0.02)
        running.end(-signal.SIGKILL if signal.SIGKILL in signals else 130)

    @pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGSTOP])
    def test_its_head_is_lost(self, begin: Any, clicks: Path, by: signal.Signals) -> None:
        entry = "under_an_impatient_coordinator"
        running = begin(clicks, entry=entry, workers=2, epochs=100_000, batch_size=20)
        running.wait_until(lambda: running.roles)
        ours = [process for process in psutil.process_iter() if session_of(process) == running.process.pid]
        (head,) = [process.pid for process in ours if process.name() == "gcs_server"]
        os.kill(head, by)
        said = running.end(1, seconds=40)
        assert said.count("error: Ray's head at ") == 1
        assert said.endswith(f"; a checkpoint is saved\nhint: `paceline resume {running.path}` continues it\n")
        assert running.result["status"] == "failed"

    def test_interrupted_while_it_starts(self, begin: Any, clicks: Path) -> None:
        running = begin(clicks, workers=2, epochs=100_000)
        time.sleep(2.0)
        running.process.send_signal(signal.SIGINT)
        assert "interrupted" in running.end(130)


def session_of(process: psutil.Process) -> int:
    try:
        return os.getsid(process.pid)
    except (ProcessLookupError, PermissionError):
        return -1


def command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""  # it has ended since


class TestRunningRay:
    def test_it_is_left_as_it_was_found(self, ray_cluster: RayCluster, clicks: Path, tmp_path: Path) -> None:
        paceline.train(data=clicks, engine="ray", address=ray_cluster.address, workers=2, run=tmp_path / "run")
        family = psutil.Process(ray_cluster.nodes[0].process.pid)
        deadline = time.monotonic() + 10
        while any("ray::Host" in command_of(process) for process in family.children(recursive=True)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        import ray

        ray.init(address=ray_cluster.address, log_to_driver=False, logging_level="ERROR")
        try:
            while ray.available_resources()["CPU"] != ray.cluster_resources()["CPU"]:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            # The run's own, and those of runs before it.
            states = {group["state"] for group in ray.util.placement_group_table().values()}
            assert states == {"REMOVED"}
        finally:
            ray.shutdown()

    def test_ray_was_loaded_before_its_token_was_named(
        self, ray_cluster: RayCluster, clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from paceline.engines.ray_access import import_ray, read_token_again

        with monkeypatch.context() as patch:
            patch.delenv("RAY_AUTH_MODE")
            import_ray()
            read_token_again()
        paceline.train(data=clicks, engine="ray", address=ray_cluster.address, run=tmp_path / "run")

    def test_its_free_processors_are_counted(
        self, ray_cluster: RayCluster, clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("paceline.defaults.ROWS_PER_WORKER", 1_000)
        run = paceline.train(data=clicks, engine="ray", address=ray_cluster.address, shards=3, run=tmp_path / "run")
        assert run.config.workers == 8 - 3

    def test_too_few_processors(self, ray_cluster: RayCluster, clicks: Path) -> None:
        with pytest.raises(ConfigError, match=r"the cluster has 8 processors; 12 are needed") as caught:
            paceline.train(data=clicks, engine="ray", address=ray_cluster.address, workers=10, shards=2)
        assert "fewer --workers" in caught.value.hint

    @needs_no_gpu
    def test_workers_get_gpus(self, ray_cluster: RayCluster, drawings: Path) -> None:
        """Four share three that the cluster says it has, and find that they are not there."""
        flags: dict[str, Any] = {"model": "alexnet-small", "pace": "sync", "workers": 4, "device": "cuda"}
        with pytest.raises(ConfigError, match=r"worker \d.*: `device` is `cuda`, but PyTorch finds no GPU here"):
            paceline.train(data=drawings, engine="ray", address=ray_cluster.address, **flags)
        with pytest.raises(ConfigError, match="the cluster has 3 GPUs; 4 are needed, one per worker"):
            paceline.train(data=drawings, engine="ray", address=ray_cluster.address, exchange="allreduce", **flags)

    def test_more_shards_than_keys(self, ray_cluster: RayCluster, mostly_clicks: Path) -> None:
        with pytest.raises(ConfigError, match=r"`shards` is 52, but there are only 51 keys"):
            paceline.train(data=mostly_clicks, engine="ray", address=ray_cluster.address, shards=52)

    def test_a_port_that_is_taken(self, ray_cluster: RayCluster, clicks: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            settings = [f"wire.port={port}"]
            with pytest.raises(ConfigError, match=str(port)):
                paceline.train(data=clicks, engine="ray", address=ray_cluster.address, settings=settings)

    def test_a_shards_port_that_is_taken(self, ray_cluster: RayCluster, clicks: Path) -> None:
        port = free_ports(2) + 1
        with socket.create_server(("127.0.0.1", port)):
            settings = [f"wire.port={port - 1}"]
            with pytest.raises(ConfigError, match=rf"shard 0 on node head: .*{port}"):
                paceline.train(data=clicks, engine="ray", address=ray_cluster.address, settings=settings)

    @pytest.mark.parametrize(
        ("entry", "code", "says"),
        [
            ("old_paceline", 2, "paceline 0.0.9 with Python"),
            ("blind_worker", 2, "worker 1 on node head: no dataset at `/nowhere/clicks`"),
            ("data_is_gone", 1, "worker 1 on node head: block `train-00003.arrow` cannot be read"),
            ("bug_in_a_worker", 1, "worker 0 on node head: ZeroDivisionError"),
        ],
    )
    def test_what_a_role_finds_wrong(
        self, ray_cluster: RayCluster, clicks: Path, tmp_path: Path, entry: str, code: int, says: str
    ) -> None:
        # In sync, each worker has half of the batches, whichever is faster.
        flags = arguments(data=clicks, engine="ray", address=ray_cluster.address, workers=2, run=tmp_path / "run",
                          batch_size=10, pace="sync")  # fmt: skip
        running = Running(ray_cluster, ["train", *flags], tmp_path / "run", entry)
        said = running.end(code, seconds=30)
        assert says in said
        assert said.count("error:") == 1
        assert code == 1 or not (tmp_path / "run").exists()


class Cluster:
    """A cluster that says what it has and what of that is free."""

    def __init__(self, has: float, free: float) -> None:
        self.cluster_resources = lambda: {"GPU": has}
        self.available_resources = lambda: {"GPU": free}


def gpus_of(has: float, free: float, wanted: int, may_share: bool) -> float:
    from paceline.engines.ray import RayEngine

    engine = object.__new__(RayEngine)
    engine._ray = Cluster(has, free)
    return engine._find_gpus(wanted, may_share)


@pytest.mark.parametrize(
    ("has", "free", "wanted", "may_share", "share"),
    [(4, 4, 4, False, 1.0), (4, 2, 4, True, 0.5), (2, 2, 3, True, 0.5), (4, 3, 3, False, 1.0)],
)
def test_gpus_that_are_free(has: float, free: float, wanted: int, may_share: bool, share: float) -> None:
    assert gpus_of(has, free, wanted, may_share) == share


@pytest.mark.parametrize(
    ("has", "free", "may_share", "said"),
    [
        (0, 0, True, "the cluster has no GPUs"),
        (2, 2, False, "the cluster has 2 GPUs; 4 are needed, one per worker"),
        (4, 3, False, "3 of the cluster's 4 GPUs are free; 4 are needed"),
        (4, 0.5, True, "0.5 of the cluster's 4 GPUs are free; 4 are needed"),
    ],
)
def test_too_few_gpus(monkeypatch: pytest.MonkeyPatch, has: float, free: float, may_share: bool, said: str) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with pytest.raises(ConfigError, match=said):
        gpus_of(has, free, 4, may_share)
