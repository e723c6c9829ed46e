"""Who was where, with which cores and links."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.diagnosis.evidence import gather_evidence
from tests.diagnosis.folders import CORES, LATENCY, make_embedded, make_planted


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
