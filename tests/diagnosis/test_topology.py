"""Who was where, with which cores and links, and how busy nodes were, even if they do not tell everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.diagnosis.evidence import gather_evidence
from paceline.telemetry.recorder import Telemetry
from paceline.telemetry.records import NodeProbe
from tests.diagnosis.folders import CORES, LATENCY, make_embedded, make_planted
from tests.reports.folders import write_records


def test_a_cluster(tmp_path: Path) -> None:
    topology = gather_evidence(make_planted(tmp_path / "run", "network", num_workers=3)).topology
    assert len(set(topology.workers)) == 3
    assert not {*topology.workers} & {*topology.shards}
    assert len(topology.cores) == 4
    assert all(CORES - 0.5 < cores <= CORES for cores in topology.cores)
    assert topology.latency == pytest.approx(LATENCY)
    # Full: as fast as what it carried.
    assert topology.bandwidth[topology.shards[0]] == pytest.approx(1e8, rel=0.05)


def test_what_others_use_is_not_ours(tmp_path: Path) -> None:
    assert gather_evidence(make_embedded(tmp_path / "alone")).topology.cores == (CORES,)
    assert gather_evidence(make_embedded(tmp_path / "not", others=1.0)).topology.cores == pytest.approx((CORES - 1,))


def test_later_probes_tell_of_more_time(tmp_path: Path) -> None:
    run = make_embedded(tmp_path / "run")
    probes = Telemetry(run.path).read(NodeProbe)
    for number, probe in enumerate(probes):
        probe.seconds, probe.disk_read_bytes_per_second = (1.0, 8e6) if number % 2 else (3.0, 0.0)
    write_records(run.path, list(probes[: len(probes) // 2 * 2]))
    (node,) = gather_evidence(run).nodes
    assert node.disk_read_bytes_per_second == pytest.approx(2e6)


@pytest.mark.parametrize("every", [1, 3])
def test_a_node_that_does_not_tell_of_its_cores(tmp_path: Path, every: int) -> None:
    run = make_embedded(tmp_path / "run")
    probes = Telemetry(run.path).read(NodeProbe)
    for probe in probes[::every]:
        probe.cores = []
    write_records(run.path, list(probes))
    evidence = gather_evidence(run)
    assert evidence.nodes[0].cores == (0 if every == 1 else CORES)
    (cores,) = evidence.topology.cores
    assert cores > 0
