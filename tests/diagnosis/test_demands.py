"""What a step takes, if samples cannot tell it alone."""

from __future__ import annotations

import random
import statistics
from pathlib import Path

import pytest

from paceline.diagnosis.demands import in_step
from paceline.diagnosis.evidence import gather_evidence
from paceline.diagnosis.simulator import Demand, PaceRules, Topology, simulate
from paceline.telemetry.recorder import Telemetry
from paceline.telemetry.records import StepSample
from tests.diagnosis.folders import make_embedded
from tests.reports.folders import write_records


def steps(chance: random.Random) -> list[Demand]:
    return [Demand(0.0, 1e-4, 1e-3 * chance.uniform(0.5, 1.5), 0.0, 100) for _ in range(50)]


@pytest.mark.parametrize("lasts", [1.1e-3, 1.2e-3, 1.6e-3])
def test_a_step_of_all_lasts_as_long_as_recorded(lasts: float) -> None:
    """Mostly less than the slowest of independent draws, or more: threads must be woken up, too."""
    chance = random.Random(1)
    demands = in_step([steps(chance) for _ in range(4)], lasts)
    topology = Topology((0,) * 4, (), (0,), (4,), (1.0,), 0.0)
    found = simulate(demands, topology, PaceRules(0, 1), steps=400)
    assert 4 * 100 / found == pytest.approx(lasts, rel=0.05)
    assert (demands[0][0].gate > 1e-5) == (lasts > 1.5e-3)


def test_reading_inside_a_loop_is_work_and_spinning_is_not(tmp_path: Path) -> None:
    """A loop that reads for a fifth of its time and then waits at the gate: its processor time is all in one sum."""
    run = make_embedded(tmp_path / "run", pace=4, cores=1)
    samples = Telemetry(run.path).read(StepSample)
    for sample in samples:
        sample.input, sample.compute = 0.2e-3, 0.8e-3
        sample.wait, sample.compute_processor = 1e-3, 1.7e-3
    write_records(run.path, list(samples))
    for own in gather_evidence(run).demands:
        assert statistics.fmean(demand.delay for demand in own) == pytest.approx(0, abs=1e-9)
        assert statistics.fmean(demand.compute for demand in own) == pytest.approx(1e-3, rel=0.05)
