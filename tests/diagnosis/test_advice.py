"""What is said to try is what the simulator says would help, and nothing else."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from paceline.diagnosis.advice import advise
from paceline.diagnosis.changes import more_keys_in_larger_batches
from paceline.diagnosis.evidence import gather_evidence
from paceline.diagnosis.verdict import WORTH_TRYING
from paceline.run_folder import RunFolder
from paceline.telemetry.ceilings import TrainingSpeed
from paceline.telemetry.facts import TIMES_LARGER, write_facts
from tests.diagnosis.folders import PLANTS, ROWS, ceilings, make_embedded, make_planted, record_facts

pytestmark = pytest.mark.usefixtures("quick")


def tried(run_folder: Path, plant: str) -> dict[str, float]:
    return {one.what: one.gain.likely for one in advise(gather_evidence(make_planted(run_folder, plant)))}


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


def record_training(run: RunFolder, gain: dict[str, float], each: float = 1e5) -> None:
    """Pretend that `doctor` measured a speed with one worker and, by pace, a multiple of it with two."""
    training = [
        TrainingSpeed(pace=pace, workers=workers, batch_size=size, rows_per_second=each * (times if workers > 1 else 1))
        for pace, times in gain.items() for workers in (1, 2) for size in (ROWS, 2 * ROWS)
    ]  # fmt: skip
    found = msgspec.structs.replace(ceilings(1e9), training=training)
    write_facts(run.path, msgspec.structs.replace(run.facts, ceilings=found))


class TestEmbedded:
    def test_workers_for_cores_that_are_free(self, tmp_path: Path) -> None:
        """What the machine was seen to gain from a second worker, this run would gain."""
        run = make_embedded(tmp_path / "run", cores=2, ranks=((0,),))
        record_training(run, {"async": 1.7})
        (one,) = advise(gather_evidence(run))
        assert (one.what, one.told) == ("`--workers 2`", "1.7×")
        assert advise(gather_evidence(make_embedded(tmp_path / "full", cores=2))) == []

    def test_the_plain_command_is_told_what_helps(self, tmp_path: Path) -> None:
        """One worker in sync, and a core to spare."""
        run = make_embedded(tmp_path / "run", cores=2, ranks=((0,),), pace="sync")
        record_training(run, {"sync": 1.3, "async": 1.9, "4": 1.5})
        gains = {one.what: one.told for one in advise(gather_evidence(run))}
        assert gains["`--pace async --workers 2`"] == "1.9×"
        assert gains["`--workers 2`"] == "1.3×"

    def test_what_the_machine_did_not_tell_is_a_range(self, tmp_path: Path) -> None:
        run = make_embedded(tmp_path / "run", cores=4, ranks=((0,),), pace="sync")
        gains = {one.what: one for one in advise(gather_evidence(run))}
        low, high = gains["`--workers 4`"].gain
        assert 1 < low < high == 4
        assert gains["`--workers 4`"].told == f"{low:.1f}–4.0×"
        assert gains["`--pace async --workers 4`"].gain.high > 4

    def test_only_cores_that_the_run_may_use(self, tmp_path: Path) -> None:
        run = make_embedded(tmp_path / "run", cores=16, ranks=((0,),))
        write_facts(run.path, msgspec.structs.replace(run.facts, cores=3))
        (one,) = advise(gather_evidence(run))
        assert one.what == "`--workers 3`"

    def test_no_more_threads_for_steps_in_python(self, tmp_path: Path) -> None:
        """What `doctor` measured with compiled steps does not hold for a table's model whose gradient is Python."""
        run = make_embedded(tmp_path / "run", cores=2, ranks=((0,),))
        record_training(run, {"async": 1.7})
        in_python = msgspec.structs.replace(run.facts.traits, compiled=False)
        write_facts(run.path, msgspec.structs.replace(run.facts, traits=in_python))
        assert advise(gather_evidence(run)) == []

    def test_no_advice_for_a_busy_machine(self, tmp_path: Path) -> None:
        evidence = gather_evidence(make_embedded(tmp_path / "run", cores=2, others=1.0))
        assert evidence.taken_cores > 0.5
        assert advise(evidence) == []


def test_larger_batches_share_keys(tmp_path: Path, one_key_per_row: Path, clicks: Path) -> None:
    """What fills a network is keys; where four batches have many in common, one of their size sends fewer."""
    run = make_planted(tmp_path / "run", "network")
    facts = record_facts(run, clicks, batch_size=100)
    more_keys = more_keys_in_larger_batches(run.config, facts)
    assert 1 < more_keys < TIMES_LARGER
    gains = {one.what: one.gain.likely for one in advise(gather_evidence(run))}
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
    gains = {one.what: one.gain.likely for one in advise(gather_evidence(run))}
    assert gains["`--batch-size 80`"] == pytest.approx(TIMES_LARGER, rel=0.1)
    facts = record_facts(run, drawings, model="softmax", batch_size=10**6)
    assert more_keys_in_larger_batches(run.config, facts) == 0
