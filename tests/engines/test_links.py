"""The links to a cluster's nodes, measured over a real one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from paceline.telemetry import ceilings
from tests.conftest import Command
from tests.ray_cluster import RayCluster
from tests.telemetry.test_ceilings import SMALL


@pytest.fixture
def two_nodes() -> Iterator[RayCluster]:
    cluster = RayCluster(head_cpus=1)
    try:
        cluster.add_node(1, "left")
        yield cluster
    finally:
        cluster.close()


def test_every_node_is_measured(
    two_nodes: RayCluster, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ceilings, "measure_ceilings", partial(ceilings.measure_ceilings, effort=SMALL))
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, two_nodes.environment[name])
    done = command("doctor", "--address", two_nodes.address, "--folder", tmp_path, "--json")
    assert done.code == 0, done.err
    links = json.loads(done.out)["links"]
    assert [link["node"] for link in links] == ["head", "left"]
    for link in links:
        assert link["bytes_per_second"] > 1e6
        assert 0 < link["round_trip_seconds"] < 1
    found = ceilings.load_ceilings()
    assert found is not None
    assert [link.node for link in found.links] == ["head", "left"]


def test_no_cluster_is_said_before_anything_is_measured(command: Command) -> None:
    done = command("doctor", "--address", "127.0.0.1:9")
    assert done.code == 2
    assert "no Ray answers at `127.0.0.1:9`" in done.err
    assert "memory copy" not in done.err
