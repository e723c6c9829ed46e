"""Workers with GPUs add up there; one that is gone is left behind, and the next group is a new one."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import paceline
from tests.faults.conftest import arguments
from tests.faults.running import Running
from tests.skips import needs_gpu, needs_one_gpu

pytestmark = needs_gpu


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], list[subprocess.Popen[str]]]]:
    """Start two workers, of which one may die."""
    started: list[subprocess.Popen[str]] = []

    def begin(fate: str) -> list[subprocess.Popen[str]]:
        for rank in (0, 1):
            words = [sys.executable, "-m", "tests.training.cluster.nccl_worker", str(rank), str(tmp_path), fate]
            started.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return started

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def test_two_add_up(start: Callable[[str], list[subprocess.Popen[str]]]) -> None:
    for one in start("lives"):
        out, _ = one.communicate(timeout=120)
        assert "done" in out, out


def test_one_is_gone(start: Callable[[str], list[subprocess.Popen[str]]], tmp_path: Path) -> None:
    first, second = start("dies")
    second.communicate(timeout=120)
    time.sleep(1)
    (tmp_path / "recalled").touch()
    out, _ = first.communicate(timeout=120)
    assert "again" in out, out


def test_a_group_starts_again_from_the_checkpoint(drawings: Path, tmp_path: Path) -> None:
    """Two workers on one GPU; one of them is killed."""
    flags: dict[str, Any] = {
        "data": drawings, "model": "tests.models.modules:plain", "device": "cuda", "pace": "sync", "workers": 2,
        "batch_size": 25, "epochs": 40, "test_every": 1_500, "optimizer": "sgd", "learning_rate": 0.05, "seed": 3,
    }  # fmt: skip
    words = [
        "train",
        *arguments(engine="ray", exchange="allreduce", checkpoint_every=0.3, run=tmp_path / "run", **flags),
    ]
    running = Running(None, words, tmp_path / "run", "on_one_gpu")
    running.wait_for_checkpoint()
    running.wait_for_metrics(2)
    running.kill(("worker", 1))
    assert "back to" in running.end()
    assert running.result["rows"] == 40 * 1_500
    assert running.result["restarts"]["workers"] >= 1
    alone = paceline.train(run=tmp_path / "alone", **flags)
    assert running.result["test"]["loss"] == pytest.approx(alone.result["test"]["loss"], rel=0.02)


@pytest.mark.parametrize("exchange", ["shard", "allreduce"])
def test_training_over_ray(drawings: Path, tmp_path: Path, exchange: str) -> None:
    """Close to what one process does."""
    flags: dict[str, Any] = {
        "data": drawings, "model": "tests.models.modules:normalised", "batch_size": 50, "epochs": 2, "seed": 1,
        "optimizer": "sgd", "learning_rate": 0.05, "momentum": 0.9, "device": "cuda", "pace": "sync",
    }  # fmt: skip
    alone = paceline.train(run=tmp_path / "alone", **flags)
    run = paceline.train(run=tmp_path / "ray", engine="ray", exchange=exchange, **flags)
    assert run.metrics[-1]["test_loss"] == pytest.approx(alone.metrics[-1]["test_loss"], rel=0.01)


def test_workers_share_a_gpu(drawings: Path, tmp_path: Path) -> None:
    run = paceline.train(
        data=drawings, model="tests.models.modules:normalised", batch_size=50, epochs=2, optimizer="sgd",
        learning_rate=0.05, device="cuda", pace="async", workers=2, engine="ray", run=tmp_path / "run",
    )  # fmt: skip
    assert run.metrics[-1]["test_accuracy"] > 0.5


@needs_one_gpu
def test_a_gpu_each(drawings: Path, tmp_path: Path) -> None:
    with pytest.raises(paceline.PacelineError, match="one per worker"):
        paceline.train(
            data=drawings, model="tests.models.modules:normalised", device="cuda", pace="sync", workers=2,
            engine="ray", exchange="allreduce", optimizer="sgd", learning_rate=0.1, run=tmp_path / "run",
        )  # fmt: skip
