"""A run in a process of its own, on a cluster, to which things are done while it trains."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paceline
from tests.ray_cluster import ROOT, RayCluster


class Running:
    """`paceline train` or `resume`, in the background."""

    def __init__(self, cluster: RayCluster | None, arguments: list[Any], run: Path, entry: str = "") -> None:
        start = ["-m", "tests.faults.driver", f"tests.faults.roles:{entry}"] if entry else ["-m", "paceline"]
        environment = cluster.environment if cluster else {k: v for k, v in os.environ.items() if "RAY_" not in k}
        environment = {**environment, "PYTHONFAULTHANDLER": "1"}
        self.path = run
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, *start, *map(str, arguments)], cwd=ROOT, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    @property
    def roles(self) -> list[dict[str, Any]]:
        path = self.path / "roles.json"
        return list(json.loads(path.read_text())) if path.exists() else []

    def pid(self, role: str, rank: int) -> int:
        return int(next(r["pid"] for r in self.roles if (r["role"], r["rank"]) == (role, rank)))

    def kill(self, *who: tuple[str, int], by: signal.Signals = signal.SIGKILL) -> None:
        for pid in [self.pid(*one) for one in who]:
            os.kill(pid, by)

    def wait_until(self, what: Callable[[], Any], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not what():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.02)

    def wait_for_metrics(self, lines: int = 1) -> None:
        path = self.path / "metrics.jsonl"
        self.wait_until(lambda: path.exists() and len(path.read_text().splitlines()) >= lines)

    def wait_for_checkpoint(self) -> None:
        self.wait_until(lambda: (self.path / "checkpoints" / "latest").exists())

    def end(self, code: int = 0, seconds: float = 100) -> str:
        """Wait for the end, with this exit code; what was printed."""
        try:
            out, err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            # Python tells what all its threads were doing.
            self.process.send_signal(signal.SIGABRT)
            raise AssertionError("\n".join(self.process.communicate())) from None
        assert self.process.returncode == code, out + err
        return out + err

    @property
    def result(self) -> dict[str, Any]:
        return paceline.Run(self.path).result

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()
