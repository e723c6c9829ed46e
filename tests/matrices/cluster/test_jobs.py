"""Matrix jobs over real Ray processes: the bits of the local engine, few bytes moved, nothing lost with a worker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from paceline.matrices.cluster import jobs, pool
from paceline.wire.handshake import new_token
from tests.conftest import Command, Outcome
from tests.matrices.cluster.roles import marker
from tests.ray_cluster import ROOT, RayCluster

TRACE = ["trace", "--size", 3000, "--blocks", 12, "--seed", 7]


@pytest.fixture
def run_job(
    command: Command, ray_cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """Run a command on the cluster; what it printed and its run."""
    token = new_token()
    monkeypatch.setattr(pool, "new_token", lambda: token)

    def run(*words: Any, workers: int = 3, code: int = 0) -> tuple[Outcome, paceline.Run]:
        path = tmp_path / "run"
        flags = ["--engine", "ray", "--address", ray_cluster.address, "--workers", workers, "--run", path]
        done = command(*words, *flags)
        assert done.code == code, done.err
        return done, paceline.Run(path) if path.exists() else None  # type: ignore[return-value]

    yield run
    marker(token).unlink(missing_ok=True)


@pytest.fixture
def factors(tmp_path: Path) -> tuple[Path, Path]:
    rng = np.random.default_rng(0)
    np.save(tmp_path / "A.npy", rng.normal(size=(600, 470)))
    np.save(tmp_path / "B.npy", np.asfortranarray(rng.normal(size=(470, 510))))
    return tmp_path / "A.npy", tmp_path / "B.npy"


def expected_trace() -> float:
    A = paceline.BlockMatrix.random(3_000, blocks=12, seed=7)
    return (A @ A).trace()


def check_product(factors: tuple[Path, Path], out: Path) -> None:
    a, b = map(np.load, factors)
    np.testing.assert_allclose(np.load(out), a @ b, rtol=0, atol=1e-13 * float((np.abs(a) @ np.abs(b)).max()))
    assert not list(out.parent.glob(f".{out.name}*"))


def test_trace_has_the_bits_of_the_local_engine(run_job: Any) -> None:
    done, run = run_job(*TRACE)
    assert run.result["trace"] == expected_trace()
    assert repr(run.result["trace"]) in done.out
    assert "a placement that ignores neighbours" in done.out
    # Sums alone travel: 78 pairs, some bytes each, where blocks would be 250 kB.
    assert run.result["bytes_lower_bound"] == 8 * 78
    assert run.result["bytes_moved"] < 10_000 < run.result["bytes_naive"]
    assert run.result["workers"] == 3
    assert not run.result["recoveries"]


def test_matmul(run_job: Any, factors: tuple[Path, Path], tmp_path: Path) -> None:
    done, run = run_job("matmul", *factors, "--out", tmp_path / "C.npy", "--block", 64, workers=4)
    check_product(factors, tmp_path / "C.npy")
    result = run.result
    assert result["bytes_planned"] <= result["bytes_moved"] <= 1.02 * result["bytes_planned"]
    assert result["bytes_lower_bound"] <= result["bytes_moved"] < result["bytes_naive"]
    assert result["blocks_read_for_others"] == 0
    assert f"{result['bytes_moved']:,}" in done.out
    page = run.report().read_text()
    assert "must move" in page


def test_more_workers_than_blocks(run_job: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "A.npy", np.ones((1, 5), np.float32))
    np.save(tmp_path / "B.npy", np.ones((5, 1), np.float32))
    run_job("matmul", tmp_path / "A.npy", tmp_path / "B.npy", "--out", tmp_path / "C.npy")
    assert np.load(tmp_path / "C.npy").tolist() == [[5]]


def test_little_memory_makes_more_tiles(run_job: Any, factors: tuple[Path, Path], tmp_path: Path) -> None:
    words = ["matmul", *factors, "--out", tmp_path / "C.npy", "--block", 40, "--memory"]
    done, _ = run_job(*words, "1MB", code=2)
    assert "too little for a block" in done.err
    _, run = run_job(*words, "53MB")
    assert run.result["tiles"] > 3
    check_product(factors, tmp_path / "C.npy")


class TestLostWorkers:
    @pytest.mark.parametrize("entry", ["killed", "stopped"])
    def test_trace(self, run_job: Any, monkeypatch: pytest.MonkeyPatch, entry: str) -> None:
        monkeypatch.setattr(jobs, "ENTRY", f"tests.matrices.cluster.roles:{entry}")
        _, run = run_job(*TRACE)
        assert run.result["trace"] == expected_trace()
        self.check_one_loss(run)

    @pytest.mark.parametrize("entry", ["killed", "stopped"])
    def test_matmul(
        self, run_job: Any, monkeypatch: pytest.MonkeyPatch, factors: tuple[Path, Path], tmp_path: Path, entry: str
    ) -> None:
        monkeypatch.setattr(jobs, "ENTRY", f"tests.matrices.cluster.roles:{entry}")
        _, run = run_job("matmul", *factors, "--out", tmp_path / "C.npy", "--block", 64)
        check_product(factors, tmp_path / "C.npy")
        self.check_one_loss(run)

    def check_one_loss(self, run: paceline.Run) -> None:
        assert run.result["status"] == "done"
        assert run.result["restarts"] == {"workers": 1}

    def test_a_node_that_does_not_come_back(self, factors: tuple[Path, Path], tmp_path: Path) -> None:
        """Its tasks go to those who are left, who read its blocks themselves."""
        cluster = RayCluster(head_cpus=1)
        try:
            node = cluster.add_node(1, "far")
            words = ["matmul", *factors, "--out", tmp_path / "C.npy", "--block", 64, "--engine", "ray", "--address",
                     cluster.address, "--run", tmp_path / "run"]  # fmt: skip
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.matrices.cluster.driver", *map(str, words)], cwd=ROOT,
                env=cluster.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
            roles, deadline = tmp_path / "run" / "roles.json", time.monotonic() + 60
            while not roles.exists():
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert {role["node"] for role in json.loads(roles.read_text()) if role["role"] == "worker"} == {
                "head",
                "far",
            }
            node.kill()
            said, _ = process.communicate(timeout=100)
            assert process.returncode == 0, said
        finally:
            cluster.close()
        check_product(factors, tmp_path / "C.npy")
        assert paceline.Run(tmp_path / "run").result["blocks_read_for_others"] > 0


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGINT])
def test_a_command_that_was_ended_continues(
    ray_cluster: RayCluster, run_job: Any, factors: tuple[Path, Path], tmp_path: Path, by: signal.Signals
) -> None:
    flags = ["--block", "20", "--memory", "49MB", "--out", str(tmp_path / "C.npy")]
    words = [
        "matmul",
        *map(str, factors),
        *flags,
        "--engine",
        "ray",
        "--address",
        ray_cluster.address,
        "--workers",
        "3",
    ]
    # Slow workers: else the job may be over before the signal comes.
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.matrices.cluster.driver", *words, "--run", str(tmp_path / "first")], cwd=ROOT,
        env=ray_cluster.environment,
    )  # fmt: skip
    journal, deadline = tmp_path / ".C.npy.journal", time.monotonic() + 60
    while not journal.exists() or len(journal.read_bytes().splitlines()) < 3:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.send_signal(by)
    process.wait()
    if by == signal.SIGINT:
        assert process.returncode == 130
        assert paceline.Run(tmp_path / "first").result["status"] == "interrupted"
    assert not (tmp_path / "C.npy").exists()
    done, run = run_job("matmul", *factors, *flags)
    assert "by an earlier attempt" in done.err
    assert 2 <= run.result["tiles_found"] < run.result["tiles"]
    check_product(factors, tmp_path / "C.npy")


class TestWhatAWorkerFindsWrong:
    def test_another_file(
        self, run_job: Any, monkeypatch: pytest.MonkeyPatch, factors: tuple[Path, Path], tmp_path: Path
    ) -> None:
        monkeypatch.setattr(jobs, "ENTRY", "tests.matrices.cluster.roles:blind")
        done, run = run_job("matmul", *factors, "--out", tmp_path / "C.npy", code=2)
        assert "worker 1 on node head: `" in done.err
        assert "is not the same file here" in done.err
        assert run is None
        assert not list(tmp_path.glob(".C.npy*"))

    def test_a_bug(self, run_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(jobs, "ENTRY", "tests.matrices.cluster.roles:broken")
        done, run = run_job(*TRACE, code=1)
        assert "worker 1 on node head: ZeroDivisionError: division by zero" in done.err
        assert run.result["status"] == "failed"
