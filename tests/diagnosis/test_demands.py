"""What a step takes, if samples cannot tell it alone."""

from __future__ import annotations

import random
import statistics
from pathlib import Path

import pytest

from paceline.diagnosis.demands import in_step, taking_turns
from paceline.diagnosis.evidence import gather_evidence
from paceline.diagnosis.simulator import Demand, PaceRules, Topology, simulate, spinning
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
    demands = gather_evidence(run).demands
    assert len(demands) == run.config.workers
    for own in demands:
        assert statistics.fmean(demand.delay for demand in own) == pytest.approx(0, abs=1e-9)
        assert statistics.fmean(demand.compute for demand in own) == pytest.approx(1e-3, rel=0.05)


@pytest.mark.parametrize(("spun", "costs"), [(2e-5, False), (6e-4, True)])
def test_roles_that_take_turns_spin_for_as_long_as_recorded(spun: float, costs: bool) -> None:
    """Three roles on two cores: less than the simulator would let them, or so much more that it costs them time."""
    own = [Demand(0.0, 5e-5, 1e-4, 2e-5, 1000, service=(8e-5,), bytes_out=(1e5,), bytes_in=(5e4,))]
    before, sync = Topology((0, 0), (0,), (0,), (2.0,), (1e12,), 0.0, spin=3e-4), PaceRules(0, 1)
    topology, demands = taking_turns(before, [own, own], sync, spun)
    turn = demands[0][0].turn
    assert spinning([own, own], topology, sync, 200) + 2 * turn == pytest.approx(spun, rel=0.2)
    assert (turn > 0) == (topology.spin == before.spin) == costs
    assert (simulate(demands, topology, sync, 200) < simulate([own, own], before, sync, 200)) == costs
