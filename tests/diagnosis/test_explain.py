"""A diagnosis as users get it: words and numbers that fit together, from hand-made runs and from real ones."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import paceline
from paceline.config import to_toml
from paceline.data.blocks.reader import EpochBlocks
from paceline.diagnosis import explain
from paceline.diagnosis.evidence import gather_evidence
from paceline.diagnosis.explain import diagnose
from paceline.diagnosis.plan import choices
from paceline.diagnosis.verdict import judge, most
from paceline.errors import ConfigError
from paceline.run_folder import RunFolder
from paceline.telemetry.ceilings import Ceilings, LinkCeiling, processor_name, save_ceilings
from paceline.telemetry.facts import write_facts
from paceline.telemetry.recorder import Telemetry
from paceline.telemetry.records import NodeProbe, WorkerChunk
from paceline.training.embedded import backend as embedded
from paceline.training.embedded.loops import StepLoop
from tests.diagnosis.folders import PLANTS, ceilings, make_embedded, make_planted, record_facts
from tests.reports.folders import write_records

FIELDS = {
    "bottleneck", "sentence", "gain_if_removed", "gain_interval", "next_bottleneck", "phases", "replay_error",
    "evidence", "recommendation", "gains", "gains_if_doubled", "advice", "needed_seconds", "taken_cores",
    "rows_per_second", "nodes",
}  # fmt: skip


def record_ceilings(run: RunFolder, found: Ceilings) -> None:
    write_facts(run.path, msgspec.structs.replace(run.facts, ceilings=found))


@pytest.mark.usefixtures("quick")
class TestWords:
    @pytest.mark.parametrize("plant", PLANTS)
    def test_the_sentence_says_what_the_numbers_say(self, tmp_path: Path, plant: str) -> None:
        found = diagnose(make_planted(tmp_path / "run", plant))
        assert set(found) == FIELDS
        assert found["bottleneck"] == plant
        assert found["sentence"].startswith(explain.WORDS[plant].bound)
        assert f"{found['gain_if_removed']:.1f}× faster" in found["sentence"]
        low, high = found["gain_interval"]
        assert low <= found["gain_if_removed"] <= high
        assert found["gain_if_removed"] == found["gains"][plant]
        assert explain.WORDS[found["next_bottleneck"]].limits in found["sentence"]
        assert found["recommendation"] in found["sentence"]
        assert found["advice"]
        for one in found["advice"][:2]:
            assert one["try"] in found["recommendation"]
        assert json.loads(json.dumps(found, allow_nan=False)) == found

    @pytest.mark.parametrize(
        ("ends", "part"),
        [([0.01, 0.02, 0.03], "the time after the first 0.01 s"), ([1.004, 2.0, 3.0], "the time after the first 1 s"),
         ([0.01, 0.02], "the whole run")],
    )  # fmt: skip
    def test_it_says_which_part_was_judged(self, tmp_path: Path, ends: list[float], part: str) -> None:
        run = make_planted(tmp_path / "run", "network")
        chunks = Telemetry(run.path).read(WorkerChunk)
        own = [next(chunk for chunk in chunks if chunk.rank == rank) for rank in range(3)]
        lasts = [end - start for start, end in zip([0.0, *ends], ends, strict=False)]
        write_records(run.path, [
            msgspec.structs.replace(chunk, time=end, seconds=seconds)
            for chunk in own for end, seconds in zip(ends, lasts, strict=True)
        ])  # fmt: skip
        assert diagnose(run)["evidence"][0].startswith(f"judged by {part}; the replay is off by ")

    def test_links_are_set_against_their_ceiling(self, tmp_path: Path) -> None:
        link = LinkCeiling(node="shard", bytes_per_second=5e8, round_trip_seconds=1e-4)
        run = make_planted(tmp_path / "run", "network")
        record_ceilings(run, msgspec.structs.replace(ceilings(1e9), links=[link]))
        found = diagnose(run)
        assert "node shard used 20% of its link of 500 MB/s" in found["evidence"]

    def test_a_link_carries_what_was_measured_of_it(self, tmp_path: Path) -> None:
        """A run whose links were never full says little about them."""
        run = make_planted(tmp_path / "run", "shard-compute")
        assert diagnose(run)["gains"]["network"] == pytest.approx(1, rel=0.05)
        # As much as it used: faster shards alone would change nothing.
        used = 8_000 / PLANTS["shard-compute"].service
        best = [LinkCeiling(node="shard", bytes_per_second=used, round_trip_seconds=1e-4)]
        record_ceilings(run, msgspec.structs.replace(ceilings(1e9), links=best))
        assert diagnose(run)["gains"]["shard-compute"] == pytest.approx(1, rel=0.1)

    def test_what_connections_waited_for(self, tmp_path: Path) -> None:
        found = diagnose(make_planted(tmp_path / "run", "network"))
        assert any(line.startswith("connections had data in flight for 100% of the time") for line in found["evidence"])

    def test_balanced(self, tmp_path: Path) -> None:
        """Faster workers would wait for the shard, and a faster shard for the workers."""
        found = diagnose(make_planted(tmp_path / "run", "balanced"))
        assert found["bottleneck"] == "balanced"
        assert found["sentence"].startswith("balanced: no single resource limits this run.")
        assert found["recommendation"] in found["sentence"]
        assert all(gain < 1.1 for gain in found["gains"].values())
        assert set(found) == FIELDS

    def test_inconclusive(self, tmp_path: Path) -> None:
        found = diagnose(make_planted(tmp_path / "run", "worker-compute", unexplained=0.5))
        assert found["bottleneck"] == "inconclusive"
        assert re.match(r"inconclusive: the replay is off by (49|50|51)\.\d%, more than 15%", found["sentence"])
        assert "the best guess so far is worker-compute" in found["sentence"]
        assert found["recommendation"].startswith("No advice")

    def test_what_has_no_bound_is_words_and_not_a_number(self, tmp_path: Path) -> None:
        """Without any input to wait for, infinitely fast workers have no limit."""
        found = diagnose(make_embedded(tmp_path / "run"))
        assert found["gain_if_removed"] is None
        assert "over 99× faster" in found["sentence"]
        json.dumps(found, allow_nan=False)

    def test_every_node_is_in_the_evidence(self, tmp_path: Path) -> None:
        found = diagnose(make_planted(tmp_path / "run", "network", num_workers=2))
        assert [node["node"] for node in found["nodes"]] == ["node-0", "node-1", "shard"]
        for node in found["nodes"]:
            assert any(line.startswith(f"node {node['node']}: 4 cores 10% busy") for line in found["evidence"])

    def test_input_that_waits_for_the_disk(self, tmp_path: Path) -> None:
        run = make_planted(tmp_path / "run", "input")
        probes = Telemetry(run.path).read(NodeProbe)
        for probe in probes:
            probe.pressure = {"io_some": 0.4}
        write_records(run.path, list(probes))
        found = diagnose(run)
        assert found["bottleneck"] == "disk"
        assert found["sentence"].startswith("disk-bound")

    @pytest.mark.parametrize(("share", "expected"), [(0.9, "memory-bandwidth"), (0.3, "worker-compute")])
    def test_workers_that_wait_for_memory(self, tmp_path: Path, clicks: Path, share: float, expected: str) -> None:
        """200,000 rows per second, on machines with faster and slower memory. A key is read once per batch."""
        run = make_embedded(tmp_path / "run")
        record_facts(run, clicks)
        gathers = gather_evidence(run).gathers_per_second
        assert 1 < gathers / 200_000 < 39 * 0.9
        record_ceilings(run, ceilings(gathers / share))
        found = diagnose(run)
        assert found["bottleneck"] == expected
        assert any(f"{share:.0%} of the machine's ceiling" in line for line in found["evidence"])

    def test_a_table_that_a_cache_holds_has_no_ceiling(self, tmp_path: Path, clicks: Path) -> None:
        run = make_embedded(tmp_path / "run")
        record_facts(run, clicks)
        record_ceilings(run, msgspec.structs.replace(ceilings(1.0), table_bytes=1 << 40))
        found = diagnose(run)
        assert found["bottleneck"] == "worker-compute"
        assert not any("ceiling" in line for line in found["evidence"])

    def test_what_was_not_recorded_is_said(self, tmp_path: Path) -> None:
        assert "the keys per batch were not recorded" in diagnose(make_embedded(tmp_path / "old"))["evidence"][-1]

    def test_what_is_not_simulated_is_not_judged(self, tmp_path: Path) -> None:
        run = make_embedded(tmp_path / "run", pace="sync")
        allreduce = msgspec.structs.replace(run.config, engine="ray", model="alexnet", exchange="allreduce")
        (run.path / "config.toml").write_bytes(to_toml(allreduce))
        found = diagnose(RunFolder(run.path))
        assert found["bottleneck"] == "inconclusive"
        assert found["sentence"].startswith("inconclusive: allreduce is not simulated")
        assert found["advice"] == []
        with pytest.raises(ConfigError, match="allreduce"):
            choices(gather_evidence(RunFolder(run.path)), [1, 2], [1], [None])


class TestPlantedInRealRuns:
    """Embedded runs of about a second in which something is slow for good reason: it sleeps."""

    def slowed(self, call: Callable[..., Any], seconds: Callable[[Any], float]) -> Callable[..., Any]:
        def slow(this: Any, *arguments: Any) -> Any:
            time.sleep(seconds(this))
            return call(this, *arguments)

        return slow

    def test_a_slow_reader(self, clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(EpochBlocks, "between", self.slowed(EpochBlocks.between, lambda _: 0.03))
        run = paceline.train(data=clicks, run=tmp_path / "run", pace="async", workers=2, batch_size=100, seconds=1.3)
        evidence = gather_evidence(run)
        assert evidence.phases["input"] > 0.5
        # How exact the replay is depends on what else the machine does; what it would name does not.
        assert most(judge(evidence).gains) == "input"

    def test_a_slow_worker(self, clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two threads in step, one of which sleeps while it computes."""
        monkeypatch.setattr(embedded, "num_cores", lambda: 2)
        run_loop, slowed = StepLoop.run, self.slowed

        def run_slowly(loop: StepLoop[Any]) -> None:
            if loop.meter.rank == 1:
                advance = loop.steps.advance
                monkeypatch.setattr(loop.steps, "advance", slowed(lambda _: advance(), lambda _: 0.05).__get__(loop))
            run_loop(loop)

        monkeypatch.setattr(StepLoop, "run", run_slowly)
        run = paceline.train(
            data=clicks, run=tmp_path / "run", pace="sync", workers=2, batch_size=1_000, seconds=1.5,
        )  # fmt: skip
        assert most(judge(gather_evidence(run)).gains) == "straggler"

    def test_a_run_of_some_seconds_ends_with_its_diagnosis(
        self, clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("paceline.run.SHORTEST_EXPLAINED_SECONDS", 0.3)
        assert not (paceline.train(data=clicks, run=tmp_path / "a").path / "diagnosis.json").exists()
        run = paceline.train(data=clicks, run=tmp_path / "b", seconds=0.4)
        assert set(json.loads((run.path / "diagnosis.json").read_text())) == FIELDS

    def test_what_goes_wrong_in_a_diagnosis_does_not_fail_the_run(
        self, clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def fail(_run: Any) -> Any:
            raise ZeroDivisionError("of all things")

        monkeypatch.setattr("paceline.run.SHORTEST_EXPLAINED_SECONDS", 0.0)
        monkeypatch.setattr("paceline.diagnosis.explain.write_diagnosis", fail)
        run = paceline.train(data=clicks, run=tmp_path / "run")
        assert run.result["status"] == "done"
        assert "ZeroDivisionError: of all things" in "".join(capsys.readouterr())


class TestAnywhere:
    """A diagnosis is a function of the run folder alone."""

    ELSEWHERE = (
        "import sys; from paceline.diagnosis import explain; from paceline.run_folder import RunFolder; "
        "explain.write_diagnosis(RunFolder(sys.argv[1]))"
    )

    @pytest.mark.parametrize(("data", "model"), [("clicks", "logistic"), ("drawings", "tests.models.modules:plain")])
    def test_a_copy_without_data_home_and_module_gives_the_same_file(
        self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str, model: str
    ) -> None:
        monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
        save_ceilings(msgspec.structs.replace(ceilings(1e7), processor=processor_name()))
        shutil.copytree(request.getfixturevalue(data), tmp_path / "data")
        run = paceline.train(data=tmp_path / "data", model=model, run=tmp_path / "run", seconds=1.0, pace="async")
        run.diagnose()
        here = (run.path / "diagnosis.json").read_bytes()
        copy = tmp_path / "elsewhere" / "copy"
        shutil.copytree(run.path, copy)
        (copy / "diagnosis.json").unlink()
        shutil.rmtree(tmp_path / "data")
        shutil.rmtree(tmp_path / "cache")
        environment = {
            "HOME": str(tmp_path / "home"), "PACELINE_CACHE": str(tmp_path / "other"), "PATH": os.environ["PATH"],
            "PYTHONPATH": str(Path(paceline.__file__).parent.parent), "PYTHONHASHSEED": "7",
        }  # fmt: skip
        subprocess.run([sys.executable, "-c", self.ELSEWHERE, str(copy)], env=environment, cwd="/", check=True)
        assert (copy / "diagnosis.json").read_bytes() == here
        assert (b"of the machine's ceiling" in here) == (model == "logistic")
