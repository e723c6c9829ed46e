"""Workers with GPUs add up there; one that is gone is left behind, and the next group is a new one."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import paceline

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


def start(rank: int, folder: Path, fate: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "tests.training.cluster.nccl_worker", str(rank), str(folder), fate]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_two_add_up(tmp_path: Path) -> None:
    pair = [start(rank, tmp_path, "lives") for rank in (0, 1)]
    for one in pair:
        out, _ = one.communicate(timeout=120)
        assert "done" in out, out


def test_one_is_gone(tmp_path: Path) -> None:
    first, second = (start(rank, tmp_path, "dies") for rank in (0, 1))
    second.communicate(timeout=120)
    time.sleep(1)
    (tmp_path / "recalled").touch()
    out, _ = first.communicate(timeout=120)
    assert "again" in out, out


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


def test_a_gpu_each(drawings: Path, tmp_path: Path) -> None:
    if torch.cuda.device_count() > 1:
        pytest.skip("there are enough")
    with pytest.raises(paceline.PacelineError, match="one a worker that adds up"):
        paceline.train(
            data=drawings, model="tests.models.modules:normalised", device="cuda", pace="sync", workers=2,
            engine="ray", exchange="allreduce", optimizer="sgd", learning_rate=0.1, run=tmp_path / "run",
        )  # fmt: skip
