"""Ctrl-C, SIGTERM and SIGKILL, sent to a real process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import paceline
from tests.conftest import Command


class TestCtrlC:
    """A real process and real signals."""

    def start(self, clicks: Path, run: Path, *more: str) -> subprocess.Popen[str]:
        arguments = ["train", "--data", str(clicks), "--run", str(run), *more]
        process = subprocess.Popen(
            [sys.executable, "-m", "paceline", *arguments], stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        metrics = run / "metrics.jsonl"
        deadline = time.monotonic() + 60
        while not metrics.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert process.poll() is None, process.communicate()[1]
        return process

    @pytest.mark.parametrize("pace", ["sync", "async", "2"])
    def test_once_saves_and_resume_continues(self, clicks: Path, tmp_path: Path, pace: str, command: Command) -> None:
        flags = ["--pace", pace, "--workers", "2", "--batch-size", "8", "--epochs", "60", "--test-every", "6000"]
        process = self.start(clicks, tmp_path / "run", *flags)
        os.kill(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=20)
        assert process.returncode == 130
        assert "interrupted after" in err
        assert f"`paceline resume {tmp_path}/run` continues it" in err
        assert paceline.Run(tmp_path / "run").result["status"] == "interrupted"
        assert command("resume", tmp_path / "run").code == 0
        result = paceline.Run(tmp_path / "run").result
        assert (result["status"], result["rows"]) == ("done", 60 * 6000)
        assert len(paceline.Run(tmp_path / "run").metrics) == 60
        if pace == "sync":
            whole = command("train", "--data", clicks, "--run", tmp_path / "whole", *flags)
            assert whole.code == 0
            assert paceline.Run(tmp_path / "whole").result["model_sha256"] == result["model_sha256"]

    def test_sigterm_is_as_good(self, clicks: Path, tmp_path: Path, command: Command) -> None:
        process = self.start(clicks, tmp_path / "run", "--epochs", "200", "--test-every", "6000")
        process.terminate()
        _, err = process.communicate(timeout=20)
        assert process.returncode == 130
        assert "a checkpoint is saved" in err
        assert command("resume", tmp_path / "run").code == 0

    def test_twice_ends_at_once(self, clicks: Path, tmp_path: Path) -> None:
        process = self.start(clicks, tmp_path / "run", "--epochs", "100000", "--test-every", "6000")
        os.kill(process.pid, signal.SIGINT)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(timeout=30) == 130  # at once, but a busy machine may take a while to get there
        process.communicate()

    def test_kill_leaves_the_last_checkpoint(self, clicks: Path, tmp_path: Path, command: Command) -> None:
        """SIGKILL at any moment: what a checkpoint promised is there, and the end has the same bits."""
        flags = ["--pace", "sync", "--workers", "2", "--batch-size", "8", "--epochs", "80", "--test-every", "6000"]
        process = self.start(clicks, tmp_path / "run", *flags, "--checkpoint-every", "0.05")
        while not (tmp_path / "run" / "checkpoints" / "latest").exists():
            time.sleep(0.01)
        process.kill()
        process.communicate()
        assert command("resume", tmp_path / "run").code == 0
        assert command("train", "--data", clicks, "--run", tmp_path / "whole", *flags).code == 0
        shas = [paceline.Run(tmp_path / name).result["model_sha256"] for name in ("run", "whole")]
        assert shas[0] == shas[1]
        assert [m["rows"] for m in paceline.Run(tmp_path / "run").metrics] == [6000 * (i + 1) for i in range(80)]
