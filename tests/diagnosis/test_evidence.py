"""From telemetry to demands: totals stay, who shares what is seen, and gaps in what was recorded do no harm."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import msgspec
import pytest

from paceline.config import to_toml
from paceline.diagnosis.advice import advise
from paceline.diagnosis.evidence import gather_evidence
from paceline.diagnosis.simulator import UNBOUNDED, Demand, PaceRules, simulate
from paceline.errors import DataError
from paceline.run_folder import RunFolder
from paceline.telemetry.recorder import Telemetry
from paceline.telemetry.records import ShardChunk, StepSample, WorkerChunk
from tests.diagnosis.folders import PLANTS, make_embedded, make_planted
from tests.reports.folders import make_half_run, write_records


def demands_of(run: RunFolder) -> list[list[Demand]]:
    """The demands of each worker; all of them have some."""
    found = gather_evidence(run).demands
    assert len(found) == run.config.workers
    assert all(found)
    return found


class TestDemands:
    def test_their_means_are_those_of_the_exact_totals(self, tmp_path: Path) -> None:
        run = make_planted(tmp_path / "run", "input")
        # A sample that is half as long again everywhere: the chunks know better.
        samples = Telemetry(run.path).read(StepSample)
        for sample in samples:
            sample.input, sample.compute, sample.push = (1.5 * x for x in (sample.input, sample.compute, sample.push))
            sample.input_processor *= 1.5
        write_records(run.path, list(samples))
        step = PLANTS["input"]
        for own in demands_of(run):
            assert statistics.fmean(d.delay + d.input for d in own) == pytest.approx(
                step.delay + step.reading, rel=1e-6
            )
            assert statistics.fmean(d.compute for d in own) == pytest.approx(step.compute, rel=1e-6)
            assert {d.rows for d in own} == {100}

    def test_waiting_for_input_is_not_work(self, tmp_path: Path) -> None:
        step = PLANTS["input"]
        for own in demands_of(make_planted(tmp_path / "run", "input")):
            assert statistics.fmean(d.delay for d in own) == pytest.approx(step.delay, rel=0.03)

    def test_samples_of_many_steps_and_of_few(self, tmp_path: Path) -> None:
        """Segments end with short pieces that cost more per step: they must not count like long ones."""
        for own in demands_of(make_embedded(tmp_path / "run", samples_of_steps=40)):
            assert statistics.fmean(d.compute for d in own) == pytest.approx(1e-3, rel=1e-6)

    def test_bytes_and_service_are_the_replies(self, tmp_path: Path) -> None:
        step = PLANTS["network"]
        for own in demands_of(make_planted(tmp_path / "run", "network")):
            assert {(d.bytes_out, d.bytes_in) for d in own} == {((step.sent,), (step.received,))}
            # With what reading a request takes, which a shard does not count.
            assert statistics.fmean(d.service[0] for d in own) == pytest.approx(step.service, rel=0.2)

    @pytest.mark.parametrize("stretch", [1.0, 2.5])
    def test_a_shard_without_a_core_of_its_own(self, tmp_path: Path, stretch: float) -> None:
        """What a shard needs the processor for is its work, however long it takes because others have the core, and
        however long it looks for requests.
        """
        run = make_planted(tmp_path / "run", "shard-compute")
        chunks, shards = Telemetry(run.path).read(WorkerChunk), Telemetry(run.path).read(ShardChunk)
        samples = Telemetry(run.path).read(StepSample)
        for chunk in chunks:
            chunk.service *= stretch
        for sample in samples:
            sample.replies = [msgspec.structs.replace(r, service=r.service * stretch) for r in sample.replies]
        for shard in shards:
            shard.spun = 0.3
            shard.processor += 0.3
        for records in (chunks, samples, shards):
            write_records(run.path, list(records))
        for own in demands_of(run):
            service = statistics.fmean(d.service[0] for d in own)
            assert service == pytest.approx(PLANTS["shard-compute"].service, rel=0.01)

    @pytest.mark.parametrize(("plant", "awake"), [("network", 0.5), ("worker-compute", 1.0)])
    def test_work_after_idling_is_slower(self, tmp_path: Path, plant: str, awake: float) -> None:
        """Which shows by what it took before training began; but not where nobody idled."""
        run = make_planted(tmp_path / "run", plant)
        chunks = Telemetry(run.path).read(WorkerChunk)
        for chunk in chunks:
            chunk.compute_alone, chunk.compute_in_company = PLANTS[plant].compute / 2, PLANTS[plant].compute
        write_records(run.path, list(chunks))
        for own in demands_of(run):
            assert [demand.awake for demand in own] == pytest.approx([awake] * len(own))
            assert [demand.shard_awake for demand in own] == pytest.approx([awake] * len(own))

    @pytest.mark.parametrize(("more", "counted"), [(0.0, 0.0), (5e-5, 5e-5), (9e-3, 1e-4)])
    def test_taking_replies_in_is_work(self, tmp_path: Path, more: float, counted: float) -> None:
        """What a worker's processor did beyond its phases, up to what sending takes; looking for replies is none."""
        run = make_planted(tmp_path / "run", "shard-compute")
        chunks = Telemetry(run.path).read(WorkerChunk)
        for chunk in chunks:
            chunk.spun = 0.1 * chunk.seconds
            chunk.processor += chunk.spun + more * chunk.steps
        write_records(run.path, list(chunks))
        step = PLANTS["shard-compute"]
        for own in demands_of(run):
            assert statistics.fmean(d.push for d in own) == pytest.approx(step.push + counted, rel=0.1)


class TestTraits:
    def test_a_model_without_keys_has_one_batch_in_flight(self, tmp_path: Path) -> None:
        run = make_planted(tmp_path / "run", "network")
        assert gather_evidence(run).rules.in_flight == 2
        without = msgspec.structs.replace(run.config, model="softmax")
        (run.path / "config.toml").write_bytes(to_toml(without))
        evidence = gather_evidence(RunFolder(run.path))
        assert evidence.rules.in_flight == 1
        assert not any("wire.values" in one.what for one in advise(evidence))


class TestWhoIsWhere:
    def test_workers_that_share_threads(self, tmp_path: Path) -> None:
        """Four workers on two threads, of which two are sampled: each is there, and all together are as fast."""
        run = make_embedded(tmp_path / "run", pace="sync", ranks=((0, 2), (1, 3)), cores=2)
        evidence = gather_evidence(run)
        assert len(evidence.demands) == len(evidence.topology.workers) == 4
        assert {d.rows for own in evidence.demands for d in own} == {100}
        replayed = simulate(evidence.demands, evidence.topology, evidence.rules, 100)
        assert replayed == pytest.approx(evidence.rows_per_second, rel=0.02)

    def test_the_pace(self, tmp_path: Path) -> None:
        assert gather_evidence(make_planted(tmp_path / "a", "network")).rules == PaceRules(UNBOUNDED, 2)
        assert gather_evidence(make_planted(tmp_path / "b", "straggler")).rules == PaceRules(0, 1)
        assert gather_evidence(make_embedded(tmp_path / "c", pace=3)).rules == PaceRules(3, 1)


class TestRate:
    def test_rows_a_second_of_all_workers(self, tmp_path: Path) -> None:
        evidence = gather_evidence(make_planted(tmp_path / "run", "shard-compute", num_workers=3))
        assert evidence.rows_per_second == pytest.approx(100 / PLANTS["shard-compute"].service, rel=1e-6)

    def test_phases_are_shares(self, tmp_path: Path) -> None:
        phases = gather_evidence(make_planted(tmp_path / "run", "network")).phases
        assert sum(phases.values()) == pytest.approx(1)
        assert phases["pull"] > 0.9

    def test_the_first_chunk_is_not_typical(self, tmp_path: Path) -> None:
        run = make_embedded(tmp_path / "run")
        chunks = Telemetry(run.path).read(WorkerChunk)
        for chunk in chunks:
            if chunk.time < 1.5:
                chunk.seconds *= 10
        write_records(run.path, list(chunks))
        assert gather_evidence(run).rows_per_second == pytest.approx(200_000)


class TestTooLittle:
    def test_no_telemetry(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="no telemetry"):
            gather_evidence(make_half_run(tmp_path / "half"))

    def test_no_samples(self, tmp_path: Path) -> None:
        run = make_embedded(tmp_path / "run")
        (run.path / "telemetry" / "steps.jsonl").unlink()
        with pytest.raises(DataError, match="no telemetry"):
            gather_evidence(run)

    def test_no_probes(self, tmp_path: Path) -> None:
        run = make_planted(tmp_path / "run", "worker-compute")
        for name in ("nodes", "connections", "shards"):
            (run.path / "telemetry" / f"{name}.jsonl").unlink()
        evidence = gather_evidence(run)
        assert evidence.nodes == []
        assert set(evidence.topology.bandwidth) == {math.inf}
