"""How much nodes were used, also if they do not tell everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.diagnosis.evidence import gather_evidence
from paceline.telemetry.recorder import Telemetry
from paceline.telemetry.records import NodeProbe
from tests.diagnosis.folders import CORES, make_embedded
from tests.reports.folders import write_records


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
