"""Disks that cannot be written, and memory that is not there: one line and a hint, never a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import paceline
from tests.conftest import Command, Outcome, SmallDisk
from tests.skips import needs_linux, needs_mount


def check(outcome: Outcome, says: str) -> None:
    lines = outcome.err.splitlines()
    assert outcome.code in (1, 2)
    assert lines[-2].startswith("error: ")
    assert says in lines[-2]
    assert lines[-1].startswith("hint: ")
    assert "Traceback" not in outcome.err


@needs_linux
@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["train", "--help"]])
def test_output_that_finds_no_room(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "paceline", *arguments], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr.decode() == "error: No space left on device\nhint: free some space\n"


@needs_linux
def test_a_log_that_finds_no_room_does_not_end_the_training(clicks: Path, tmp_path: Path) -> None:
    words = ["train", "--data", str(clicks), "--run", str(tmp_path / "run"), "--test-every", "1000"]
    with open("/dev/full", "w") as full:
        subprocess.run([sys.executable, "-m", "paceline", *words], stdout=subprocess.PIPE, stderr=full, check=True)
    assert paceline.Run(tmp_path / "run").result["status"] == "done"


@needs_mount
def test_a_read_only_disk(small_disk: SmallDisk, command: Command, clicks: Path, tmp_path: Path) -> None:
    disk = small_disk.path
    run = paceline.train(data=clicks, run=disk / "run")
    np.save(disk / "a.npy", np.eye(8))
    (disk / "x.csv").write_text("label,a\n1,2\n0,3\n" * 50)
    small_disk.make_read_only()
    for words in (
        ["train", "--data", clicks, "--run", disk / "new"],
        ["prepare", disk / "x.csv", "--out", disk / "new"],
        ["generate", "clicks", "--rows", "100", "--out", disk / "new"],
        ["predict", run.path, "--data", clicks, "--out", disk / "new.csv"],
        ["matmul", disk / "a.npy", disk / "a.npy", "--out", disk / "new.npy", "--run", tmp_path / "matmul"],
        ["trace", "--size", "64", "--blocks", "2", "--seed", "1", "--run", disk / "new"],
        ["report", run.path],
        ["compare", run.path, run.path, "--out", disk / "new.html"],
    ):
        check(command(*words), "cannot be written: Read-only file system")
    # What only reads there does its work.
    assert command("evaluate", run.path, "--data", clicks).code == 0
    assert command("report", run.path, "--out", tmp_path / "report.html").code == 0


def test_too_little_memory(clicks: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 7.45 GiB for an array with shape (1000000000,) and data type float64")

    monkeypatch.setattr("paceline.training.coordinator.Coordinator._run_segment", refuse)
    check(command("train", "--data", clicks, "--run", tmp_path / "run"), "out of memory: Unable to allocate 7.45 GiB")
    result = paceline.Run(tmp_path / "run").result
    assert (result["status"], result["error_kind"]) == ("failed", "MemoryError")
