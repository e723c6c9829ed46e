"""Changed worlds: what a change splits, joins or repeats is what it says."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from paceline.diagnosis.changes import (
    DEALING,
    FOLDING,
    Range,
    at_pace,
    gain_of,
    half_values,
    over_shards,
    possible_worlds,
    resized,
    with_larger_batches,
    with_shards,
)
from paceline.diagnosis.evidence import gather_evidence
from paceline.diagnosis.verdict import World, each_step, rate
from paceline.telemetry.facts import TIMES_LARGER
from tests.diagnosis.folders import make_planted

pytestmark = pytest.mark.usefixtures("quick")


def test_the_whole_model_goes_less_often_in_larger_batches(tmp_path: Path) -> None:
    evidence = gather_evidence(make_planted(tmp_path / "run", "network"))
    world = World(evidence.demands, evidence.topology, evidence.rules)
    before, after = world.demands[0], with_larger_batches(world, 2.0, whole_model=True).demands[0]
    assert len(after) == len(before) // TIMES_LARGER
    assert after[0].rows == sum(demand.rows for demand in before[:TIMES_LARGER])
    assert after[0].compute == sum(demand.compute for demand in before[:TIMES_LARGER])
    assert after[0].bytes_in == before[0].bytes_in
    assert after[0].bytes_out[0] == 2 * before[0].bytes_out[0]


def test_half_the_values_leave_keys_whole(tmp_path: Path) -> None:
    evidence = gather_evidence(make_planted(tmp_path / "run", "network"))
    changed = half_values(World(evidence.demands, evidence.topology, evidence.rules))
    before, after = evidence.demands[0][0], changed.demands[0][0]
    assert after.bytes_out[0] == pytest.approx(0.75 * before.bytes_out[0])
    assert after.bytes_in[0] == pytest.approx(0.5 * before.bytes_in[0])


def test_shards_split_what_there_is(tmp_path: Path) -> None:
    evidence = gather_evidence(make_planted(tmp_path / "run", "shard-compute"))
    world = World(evidence.demands, evidence.topology, evidence.rules)
    changed = with_shards(world, 4)
    before, after = world.demands[0][0], changed.demands[0][0]
    assert len(after.service) == len(changed.topology.shards) == 4
    for field in ("service", "bytes_out", "bytes_in"):
        assert math.fsum(getattr(after, field)) == pytest.approx(math.fsum(getattr(before, field)))
    assert rate(changed) > rate(world)


def with_fixed(world: World, push: float, service: float) -> World:
    return each_step(world, lambda demand: demand._replace(push_fixed=push, service_fixed=service))


def test_every_frame_takes_what_does_not_depend_on_its_size(tmp_path: Path) -> None:
    """4 ms of service, of which 3 do not: two shards take 3.5 ms each, and a worker sends twice as many frames."""
    evidence = gather_evidence(make_planted(tmp_path / "run", "shard-compute"))
    world = with_fixed(World(evidence.demands, evidence.topology, evidence.rules), push=5e-5, service=3e-3)
    before, after = world.demands[0][0], with_shards(world, 2).demands[0][0]
    assert after.service == pytest.approx((3e-3 + (before.service[0] - 3e-3) / 2,) * 2)
    assert after.push == pytest.approx(before.push - 5e-5 + 2 * 5e-5 * (1 + DEALING))
    larger = with_larger_batches(world, 2.0, whole_model=False).demands[0][0]
    assert larger.service[0] == pytest.approx(3e-3 + 2 * (before.service[0] - 3e-3))


def test_workers_deal_keys_out_to_several_shards_and_not_to_one(tmp_path: Path) -> None:
    evidence = gather_evidence(make_planted(tmp_path / "run", "worker-compute"))
    world = World(evidence.demands, evidence.topology, evidence.rules)
    one, two, four = (with_shards(world, count).demands[0][0].compute for count in (1, 2, 4))
    assert one == world.demands[0][0].compute
    assert two == pytest.approx(one * (1 + DEALING))
    assert over_shards(with_shards(world, 4).demands[0][0], 1).compute == pytest.approx(one)
    assert four == two


def test_adding_keys_up_in_sync_takes_longer(tmp_path: Path) -> None:
    evidence = gather_evidence(make_planted(tmp_path / "run", "shard-compute"))
    world = with_fixed(World(evidence.demands, evidence.topology, evidence.rules), push=0.0, service=3e-3)
    before = world.demands[0][0].service[0]
    asynchronous, sync = (at_pace(world, pace, keyed=True).demands[0][0].service[0] for pace in ("async", "sync"))
    assert before in (asynchronous, sync)
    assert sync - 3e-3 == pytest.approx(FOLDING * (asynchronous - 3e-3))
    assert at_pace(world, "sync", keyed=False).demands == at_pace(world, "async", keyed=False).demands


def test_larger_batches_save_what_a_step_takes_regardless_of_its_size(tmp_path: Path) -> None:
    evidence = gather_evidence(make_planted(tmp_path / "run", "worker-compute"))
    world = World(evidence.demands, evidence.topology, evidence.rules)
    world = each_step(world, lambda demand: demand._replace(input=1e-3, compute=3e-3, step_fixed=1e-3))
    after = with_larger_batches(world, 2.0, whole_model=False).demands[0][0]
    assert after.input + after.compute == pytest.approx(TIMES_LARGER * 4e-3 - (TIMES_LARGER - 1) * 1e-3)


def test_what_is_not_known_is_a_range(tmp_path: Path) -> None:
    evidence = gather_evidence(make_planted(tmp_path / "run", "shard-compute"))
    world = World(evidence.demands, evidence.topology, evidence.rules)
    assert len(possible_worlds(world)) == 2
    found = gain_of(world, lambda each: with_shards(each, 2), rate(world))
    assert found.low == pytest.approx(1.0, abs=0.05)
    assert found.high == pytest.approx(2.0, rel=0.05)
    assert not found.is_known
    assert len(possible_worlds(with_fixed(world, 0.0, 0.0))) == 1


def test_busy_neighbours_make_work_slower(tmp_path: Path) -> None:
    """All four cores busy instead of two: a third of the way from one to four is done already."""
    evidence = gather_evidence(make_planted(tmp_path / "run", "worker-compute", num_workers=1))
    topology = evidence.topology._replace(
        workers=(0,), shards=(0,), machines=(0,), cores=(4,), bandwidth=evidence.topology.bandwidth[:1]
    )
    world = with_fixed(World(evidence.demands, topology, evidence.rules), 0.0, 0.0)
    before, after = world.demands[0][0], resized(world, 3, 1, company=1.6).demands[0][0]
    assert after.compute == pytest.approx(before.compute * 1.6 / 1.2)


def test_the_middle_of_a_range() -> None:
    assert Range(1.0, 4.0).likely == 2.0
    assert Range(2.0, 2.05).is_known
