"""What limits a run over sparse rows on a GPU: from hand-made records, with gains that can be computed by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from paceline.api import Run
from paceline.diagnosis.evidence import gather_evidence
from paceline.diagnosis.explain import diagnose
from paceline.diagnosis.gpu import GpuTime, gains
from paceline.diagnosis.plan import choices
from paceline.errors import ConfigError, DataError
from paceline.run_folder import RunFolder
from paceline.telemetry.facts import write_facts
from tests.conftest import OLDER_RUNS, Command
from tests.diagnosis.folders import ceilings, make_embedded, make_on_gpu, record_facts

CASES: dict[str, tuple[dict[str, Any], float, str]] = {
    # Kernels that take no time leave a tenth of a second, and an infinitely fast bus leaves half of it.
    "gpu-memory": ({"kernels": 0.9, "waiting": 0.1}, 10.0, "GPU-bound: with kernels that take no time"),
    "bus": ({"kernels": 0.4, "waiting": 0.1, "copies": 1.0}, 2.0, "bus-bound: with an infinitely fast bus to the GPU"),
    "input": ({"kernels": 0.25, "waiting": 0.75}, 4.0, "input-bound: with launches that are ready at once"),
}


class TestVerdict:
    @pytest.mark.parametrize("expected", CASES)
    def test_what_takes_most_of_the_time_is_named(self, tmp_path: Path, expected: str) -> None:
        spent, gain, words = CASES[expected]
        found = diagnose(make_on_gpu(tmp_path / "run", **spent))
        assert found["bottleneck"] == expected
        assert found["gain_if_removed"] == pytest.approx(gain)
        assert found["gain_interval"] == pytest.approx([gain, gain])
        assert found["sentence"].startswith(f"{words} this run would be {gain:.1f}× faster")
        assert found["replay_error"] < 0.01
        assert found["next_bottleneck"] != expected
        assert set(found["gains"]) == set(found["gains_if_doubled"]) == set(CASES)
        assert all(found["gains_if_doubled"][name] <= found["gains"][name] for name in CASES)
        assert found["recommendation"] in found["sentence"]
        assert sum(found["phases"].values()) == pytest.approx(1)
        assert json.loads(json.dumps(found, allow_nan=False)) == found

    def test_copies_that_take_as_long_as_the_rest_are_balanced(self, tmp_path: Path) -> None:
        found = diagnose(make_on_gpu(tmp_path / "run", kernels=0.92, waiting=0.05, copies=1.0))
        assert found["bottleneck"] == "balanced"
        assert max(found["gains"].values()) < 1.1

    def test_what_the_formula_cannot_explain_is_inconclusive(self, tmp_path: Path) -> None:
        found = diagnose(make_on_gpu(tmp_path / "run", unexplained=0.3))
        assert found["bottleneck"] == "inconclusive"
        assert found["replay_error"] == pytest.approx(0.3, abs=0.02)
        assert found["sentence"].endswith("the best guess so far is gpu-memory.")
        assert found["advice"] == []

    def test_a_gain_without_bound(self) -> None:
        assert gains(GpuTime(1.0, 0.0, 0.0), math.inf) == {"gpu-memory": math.inf, "bus": 1.0, "input": 1.0}
        # Behind kernels, copies take no time of their own.
        assert gains(GpuTime(1.0, 0.0, 0.8), 2.0) == pytest.approx({"gpu-memory": 1.25, "bus": 1.0, "input": 1.0})


class TestAdvice:
    def test_fewer_bytes_if_kernels_use_most_of_the_bandwidth(self, tmp_path: Path) -> None:
        """100,000 rows of 8,000 bytes in 0.9 s are 0.89 GB/s, of 1 GB/s."""
        fewer = {"--optimizer sgd": 4_000.0, "--dim 4": 7_900.0, "--set factors.row_wise=true": 8_000.0}
        found = diagnose(make_on_gpu(tmp_path / "run", bytes_per_row=8_000.0, fewer_bytes=fewer))
        assert [one["flags"] for one in found["advice"]] == ["--optimizer sgd"]
        assert found["advice"][0]["interval"] == pytest.approx([1.0, 1 / 0.55])
        assert "about 89% of the bandwidth" in found["recommendation"]
        assert "Try `--optimizer sgd` (1.0–1.8×)" in found["recommendation"]

    def test_larger_launches_if_they_use_little_of_it(self, tmp_path: Path) -> None:
        found = diagnose(make_on_gpu(tmp_path / "run", fewer_bytes={"--optimizer sgd": 10.0}, most_rows=300))
        assert [one["flags"] for one in found["advice"]] == ["--batch-size 300"]
        # A third of the preparation, and kernels up to three times as fast.
        assert found["advice"][0]["interval"] == pytest.approx([1.0, 3.0])
        assert "about 11% of the bandwidth" in found["recommendation"]

    def test_launches_that_cannot_grow(self, tmp_path: Path) -> None:
        found = diagnose(make_on_gpu(tmp_path / "run", most_rows=199))
        assert found["advice"] == []
        assert "No change that paceline knows" in found["recommendation"]

    def test_larger_launches_for_a_slow_host(self, tmp_path: Path) -> None:
        found = diagnose(
            make_on_gpu(tmp_path / "run", kernels=0.2, waiting=0.8, bytes_per_row=2_000.0, most_rows=10**6)
        )
        assert found["advice"][0]["flags"] == "--batch-size 400"
        # The kernels use all of the bandwidth, so only the preparation gets cheaper.
        assert found["advice"][0]["interval"] == pytest.approx([1.0, 2.5])

    def test_rows_that_stay_on_the_gpu_for_a_slow_bus(self, tmp_path: Path) -> None:
        spent: dict[str, Any] = {"kernels": 0.4, "waiting": 0.1, "copies": 1.0}
        found = diagnose(make_on_gpu(tmp_path / "streamed", resident=0.0, **spent))
        assert found["advice"][0]["flags"] == "--set resident=1"
        assert found["advice"][0]["gain"] == pytest.approx(2.0)
        assert "--hash-bits" in found["recommendation"]
        # Rows that do not fit cannot be made to stay.
        found = diagnose(make_on_gpu(tmp_path / "large", **spent))
        assert found["advice"] == []
        assert "a GPU with more memory" in found["recommendation"]


class TestEvidence:
    def test_it_is_said_in_words(self, tmp_path: Path) -> None:
        run = make_on_gpu(tmp_path / "run", kernels=0.4, waiting=0.1, copies=1.0)
        lines = diagnose(run)["evidence"]
        for line in (
            "the GPU's time: kernels 40%, waiting for this machine 10%, waiting for the bus 50%",
            "kernels move about 1,000 bytes per row, or 0 GB/s: 25% of the 1 GB/s of a GPU",
            "1,000 rows per launch",
            "rows are streamed: copies took 100% of the time, at 0.1 GB/s of the bus's 0.1 GB/s",
        ):
            assert line in lines
        assert "all rows stay on the GPU" in diagnose(make_on_gpu(tmp_path / "other"))["evidence"]

    def test_pages_and_the_terminal_show_it(self, tmp_path: Path, command: Command) -> None:
        run = make_on_gpu(tmp_path / "run", kernels=0.4, waiting=0.1, copies=1.0)
        done = command("diagnose", run.path)
        assert done.out.startswith("bus-bound: ")
        page = Run(run.path).report().read_text()
        assert "Bus-bound: " in page
        assert "the bus to the GPU" in page

    def test_a_run_without_its_records_is_not_explained(self, tmp_path: Path) -> None:
        run = make_on_gpu(tmp_path / "run")
        (run.path / "telemetry" / "gpus.jsonl").unlink()
        with pytest.raises(DataError, match="no telemetry that could explain it"):
            diagnose(run)

    def test_records_that_cannot_be_true_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="cannot be true"):
            diagnose(make_on_gpu(tmp_path / "run", kernels=0.0, waiting=0.0))

    def test_plans_are_refused(self, tmp_path: Path) -> None:
        evidence = gather_evidence(make_on_gpu(tmp_path / "run"))
        with pytest.raises(ConfigError, match="one worker trains sparse rows on a GPU") as error:
            choices(evidence, [1, 2], [1], [None])
        assert "paceline diagnose" in error.value.hint


class TestOlderRuns:
    @pytest.mark.parametrize("name", ["sparse", "cluster", "adam"])
    def test_they_have_no_gpu(self, name: str) -> None:
        assert RunFolder(OLDER_RUNS / name).facts.gpu is None

    def test_facts_from_before_there_were_gpus(self, tmp_path: Path, clicks: Path) -> None:
        run = make_embedded(tmp_path / "run")
        record_facts(run, clicks)
        write_facts(run.path, msgspec.structs.replace(run.facts, ceilings=ceilings(1e9)))
        now, path = diagnose(run), run.path / "telemetry" / "run.json"
        recorded = json.loads(path.read_text())
        assert recorded.pop("gpu") is None
        assert recorded["ceilings"].pop("gpu") is None
        path.write_text(json.dumps(recorded))
        assert diagnose(RunFolder(run.path)) == now
