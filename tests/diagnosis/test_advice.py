"""What is said to try is what the simulator says would help, and nothing else."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from paceline.diagnosis.advice import (
    advise,
    half_values,
    more_keys_in_larger_batches,
    with_larger_batches,
    with_shards,
)
from paceline.diagnosis.evidence import gather_evidence
from paceline.diagnosis.verdict import WORTH_TRYING, World, rate
from paceline.telemetry.facts import TIMES_LARGER
from tests.diagnosis.folders import PLANTS, make_embedded, make_planted, record_facts

pytestmark = pytest.mark.usefixtures("quick")


def tried(run_folder: Path, plant: str) -> dict[str, float]:
    return {one.what: one.gain for one in advise(gather_evidence(make_planted(run_folder, plant)))}


@pytest.mark.parametrize("plant", PLANTS)
def test_all_advice_helps_best_first(tmp_path: Path, plant: str) -> None:
    gains = list(tried(tmp_path / "run", plant).values())
    assert gains
    assert all(gain >= WORTH_TRYING for gain in gains)
    assert gains == sorted(gains, reverse=True)


def test_fewer_bytes_for_a_full_network(tmp_path: Path) -> None:
    found = tried(tmp_path / "run", "network")
    assert found["`--set wire.values=bfloat16`"] == pytest.approx(4 / 3, rel=0.05)


def test_more_shards_for_a_busy_shard(tmp_path: Path) -> None:
    found = tried(tmp_path / "run", "shard-compute")
    assert found.keys() == {"`--shards 2`, each new one on its own machine"}


def test_nobody_waits_for_a_slow_worker_in_async(tmp_path: Path) -> None:
    assert tried(tmp_path / "run", "straggler")["`--pace async`"] > 1.5


def test_only_more_workers_help_where_workers_are_slow(tmp_path: Path) -> None:
    ((what, gain),) = tried(tmp_path / "run", "worker-compute").items()
    assert what == "`--workers 6`, each new one on its own machine"
    assert gain == pytest.approx(2.0, rel=0.05)


def test_a_worker_more_where_a_core_is_free(tmp_path: Path) -> None:
    (one,) = advise(gather_evidence(make_embedded(tmp_path / "free", cores=4)))
    assert one.what == "`--workers 3`"
    assert one.gain == pytest.approx(1.5, rel=0.02)
    assert advise(gather_evidence(make_embedded(tmp_path / "full", cores=2))) == []
    # What threads cost each other at a gate, one of them alone does not show.
    alone = gather_evidence(make_embedded(tmp_path / "alone", cores=4, ranks=((0,),), pace="sync"))
    assert not any("--workers" in one.what for one in advise(alone))


def test_larger_batches_share_keys(tmp_path: Path, one_key_per_row: Path, clicks: Path) -> None:
    """What fills a network is keys; where four batches have many in common, one of their size sends fewer."""
    run = make_planted(tmp_path / "run", "network")
    facts = record_facts(run, clicks, batch_size=100)
    more_keys = more_keys_in_larger_batches(run.config, facts)
    assert 1 < more_keys < TIMES_LARGER
    gains = {one.what: one.gain for one in advise(gather_evidence(run))}
    assert gains["`--batch-size 400`"] == pytest.approx(TIMES_LARGER / more_keys, rel=0.05)
    # Where no two rows have a key in common, a batch's bytes grow as its rows do.
    facts = record_facts(run, one_key_per_row, batch_size=64)
    assert more_keys_in_larger_batches(run.config, facts) == TIMES_LARGER
    assert "`--batch-size 256`" not in {one.what for one in advise(gather_evidence(run))}


def test_no_larger_batches_than_there_are_rows(tmp_path: Path, clicks: Path) -> None:
    run = make_planted(tmp_path / "run", "network")
    assert more_keys_in_larger_batches(run.config, run.facts) == 0
    facts = record_facts(run, clicks, workers=2, batch_size=2000)
    assert more_keys_in_larger_batches(run.config, facts) == 0


def test_a_model_without_keys_goes_less_often_in_larger_batches(tmp_path: Path, drawings: Path) -> None:
    run = make_planted(tmp_path / "run", "network")
    record_facts(run, drawings, model="softmax", batch_size=20)
    gains = {one.what: one.gain for one in advise(gather_evidence(run))}
    assert gains["`--batch-size 80`"] == pytest.approx(TIMES_LARGER, rel=0.1)
    facts = record_facts(run, drawings, model="softmax", batch_size=10**6)
    assert more_keys_in_larger_batches(run.config, facts) == 0


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
