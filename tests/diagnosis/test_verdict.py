"""Planted bottlenecks are named, whatever the noise; and what the replay cannot explain is not judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.diagnosis import verdict as verdicts
from paceline.diagnosis.evidence import gather_evidence
from paceline.diagnosis.verdict import RESOURCES, STRAGGLING, judge, most
from tests.diagnosis.folders import PLANTS, make_embedded, make_planted


@pytest.mark.parametrize("plant", PLANTS)
def test_what_was_planted_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: str) -> None:
    monkeypatch.setattr(verdicts, "RESAMPLES", 4)
    verdict = judge(gather_evidence(make_planted(tmp_path / "run", plant)))
    assert verdict.bottleneck == plant
    assert verdict.replay_error < 0.05
    assert verdict.gains[plant] > 2
    assert verdict.interval[0] <= 1.02 * verdict.gains[plant]
    assert verdict.interval[1] >= 0.98 * verdict.gains[plant]
    assert verdict.next_bottleneck != plant
    assert verdict.next_bottleneck in RESOURCES
    # Twice is less than without limit; what is not scarce gains nothing.
    assert set(verdict.doubled) == set(RESOURCES)
    for name, gain in verdict.doubled.items():
        assert gain <= 1.05 * verdict.gains[name]
    others = {name: gain for name, gain in verdict.gains.items() if name not in (plant, "worker-compute")}
    assert max(others.values()) < 1.2


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("plant", PLANTS)
def test_ten_runs_alike_have_one_verdict(tmp_path: Path, plant: str) -> None:
    runs = [make_planted(tmp_path / str(seed), plant, seed=seed, num_workers=2) for seed in range(10)]
    assert {judge(gather_evidence(run)).bottleneck for run in runs} == {plant}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("plant", ["worker-compute", "shard-compute"])
def test_what_the_replay_cannot_explain_is_not_judged(tmp_path: Path, plant: str) -> None:
    near = judge(gather_evidence(make_planted(tmp_path / "near", plant, unexplained=0.1)))
    assert near.bottleneck == plant
    assert near.replay_error == pytest.approx(0.1, abs=0.03)
    far = judge(gather_evidence(make_planted(tmp_path / "far", plant, unexplained=0.3)))
    assert far.bottleneck == "inconclusive"
    assert far.replay_error == pytest.approx(0.3, abs=0.05)
    # What it would name is still to be seen.
    assert most(far.gains) == plant


@pytest.mark.usefixtures("quick")
def test_an_embedded_run_is_bound_by_its_workers(tmp_path: Path) -> None:
    verdict = judge(gather_evidence(make_embedded(tmp_path / "run")))
    assert verdict.bottleneck == "worker-compute"
    assert verdict.gains["network"] == verdict.gains["shard-compute"] == pytest.approx(1)


@pytest.mark.usefixtures("quick")
def test_the_same_run_has_the_same_verdict(tmp_path: Path) -> None:
    evidence = gather_evidence(make_planted(tmp_path / "run", "network"))
    assert judge(evidence) == judge(evidence)


def test_a_straggler_comes_before_workers_in_general() -> None:
    assert most({"worker-compute": 9.0, "straggler": STRAGGLING}) == "straggler"
    assert most({"worker-compute": 9.0, "straggler": 0.99 * STRAGGLING}) == "worker-compute"
    assert most({"worker-compute": 9.0, "network": 10.0}) == "network"
