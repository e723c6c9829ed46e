"""The links to a cluster's nodes, measured over a real one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Command
from tests.ray_cluster import ROOT, RayCluster


@pytest.fixture
def two_nodes() -> Iterator[RayCluster]:
    cluster = RayCluster(head_cpus=1)
    try:
        cluster.add_node(1, "left")
        yield cluster
    finally:
        cluster.close()


# Ray remembers the first token that a process has read: hence one of its own.
DOCTOR = """
from functools import partial
from paceline.cli import main
from paceline.telemetry import measure_ceilings as measuring
from paceline.training.embedded import measure_training as training
from tests.telemetry.test_measure_ceilings import SMALL

measuring.measure_ceilings = partial(measuring.measure_ceilings, effort=SMALL)
training.measure_training = lambda say: []
main()
"""


def test_every_node_is_measured(two_nodes: RayCluster, tmp_path: Path) -> None:
    words = ["doctor", "--address", two_nodes.address, "--folder", str(tmp_path), "--json"]
    environment = {**two_nodes.environment, "PACELINE_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", DOCTOR, *words], env=environment, cwd=ROOT, capture_output=True, text=True, check=False,
        timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    links = json.loads(done.stdout)["links"]
    assert [link["node"] for link in links] == ["head", "left"]
    for link in links:
        assert link["bytes_per_second"] > 1e6
        assert 0 < link["round_trip_seconds"] < 1
    kept = json.loads((tmp_path / "cache" / "machine.json").read_text())
    assert [link["node"] for link in kept["links"]] == ["head", "left"]


def test_no_cluster_is_said_before_anything_is_measured(command: Command) -> None:
    done = command("doctor", "--address", "127.0.0.1:9")
    assert done.code == 2
    assert "no Ray answers at `127.0.0.1:9`" in done.err
    assert "memory copy" not in done.err
