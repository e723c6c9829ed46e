"""A real Ray cluster on this machine's loopback, for tests: nodes that can be added and killed, and nothing left."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

from tests.ports import free_ports

ROOT = Path(__file__).parent.parent
START_SECONDS = 60


class RayNode:
    """One node: `ray start --block` and all that it starts, in a session of its own."""

    def __init__(self, arguments: list[str], environment: dict[str, str], name: str, folder: Path) -> None:
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
        self.name = name
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*ray, f"--node-name={name}", *arguments], env=environment, stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        """End every process of this node at once, as if its machine had lost power."""
        family: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            head = psutil.Process(self.process.pid)
            family = [*head.children(recursive=True), head]
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
        psutil.wait_procs(family, timeout=10)


class RayCluster:
    """A head node without processors for roles unless asked, and more nodes as wanted."""

    def __init__(self, head_cpus: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="plr-", dir="/tmp"))
        self.port = free_ports()
        self.address = f"127.0.0.1:{self.port}"
        token = self.folder / "token"
        token.touch(0o600)
        token.write_text(secrets.token_hex(32))
        self.environment = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
        }
        self.nodes: list[RayNode] = []
        try:
            self._add(["--head", f"--port={self.port}", "--include-dashboard=false", *self._sizes(head_cpus)], "head")
        except BaseException:
            self.close()
            raise

    def add_node(self, cpus: int, name: str) -> RayNode:
        """One more node."""
        return self._add([f"--address={self.address}", *self._sizes(cpus)], name)

    def close(self) -> None:
        for node in reversed(self.nodes):
            node.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _sizes(self, cpus: int) -> list[str]:
        # Every node of a test needs a folder of its own only where sessions differ; all of these share one.
        # Whether a machine has GPUs is for Ray to believe.
        return [f"--num-cpus={cpus}", "--num-gpus=3", "--object-store-memory=80000000", f"--temp-dir={self.folder}"]

    def _add(self, arguments: list[str], name: str) -> RayNode:
        node = RayNode(arguments, self.environment, name, self.folder)
        self.nodes.append(node)
        deadline = time.monotonic() + START_SECONDS
        while b"Ray runtime started" not in node.log.read_bytes():
            if node.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"node {name} did not start: {node.log.read_text()[-2000:]}")
            time.sleep(0.1)
        return node
