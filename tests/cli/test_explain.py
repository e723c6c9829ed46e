"""`diagnose` and `plan`, on hand-made run folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.run_folder import RunFolder
from tests.cli.files import tree
from tests.conftest import Command, Outcome
from tests.diagnosis.folders import make_embedded, make_planted, record_facts
from tests.reports.folders import make_half_run, make_run


class TestDiagnose:
    """What limited a run, from hand-made folders."""

    def test_words_then_numbers(self, command: Command, tmp_path: Path) -> None:
        """Of a run that was killed: there is telemetry, but no result."""
        run = make_planted(tmp_path / "run", "network")
        assert not (run.path / "result.json").exists()
        outcome = command("diagnose", run.path)
        assert outcome.code == 0
        sentence, *evidence = outcome.out.splitlines()
        assert sentence == run.saved_diagnosis["sentence"]
        assert sentence.startswith("network-bound: with an infinitely fast network this run would be ")
        assert evidence == [f"  {line}" for line in run.saved_diagnosis["evidence"]]

    def test_json_is_the_file(self, command: Command, tmp_path: Path) -> None:
        run = make_planted(tmp_path / "run", "shard-compute")
        outcome = command("diagnose", run.path, "--json")
        assert outcome.code == 0
        assert outcome.out == (run.path / "diagnosis.json").read_text()
        assert json.loads(outcome.out)["bottleneck"] == "shard-compute"

    @pytest.mark.parametrize("name", ["diagnose", "plan"])
    def test_a_folder_that_is_not_a_run(self, command: Command, tmp_path: Path, name: str) -> None:
        (tmp_path / "folder").mkdir()
        for path, problem in (
            (tmp_path / "folder", "is not a run folder: it has no config.toml"),
            (tmp_path / "nowhere", "does not exist"),
        ):
            self.refused(command(name, path), f"`{path}` {problem}", "`paceline train` made")
        assert tree(tmp_path) == []

    @pytest.mark.parametrize("name", ["diagnose", "plan"])
    def test_a_run_without_telemetry(self, command: Command, tmp_path: Path, name: str) -> None:
        run = make_run(tmp_path / "run", telemetry=False)
        self.refused(command(name, run.path), f"`{run.path}` has no telemetry", "`telemetry` is missing")
        assert not (run.path / "diagnosis.json").exists()
        half = make_half_run(tmp_path / "half")
        self.refused(command(name, half.path), f"`{half.path}` has no telemetry", "train for at least a few seconds")

    @staticmethod
    def refused(outcome: Outcome, error: str, hint: str) -> None:
        assert (outcome.code, outcome.out) == (2, "")
        first, second = outcome.err.splitlines()
        assert first.startswith("error: ")
        assert error in first
        assert second.startswith("hint: ")
        assert hint in second


class TestPlan:
    """What other clusters would give, from hand-made folders."""

    @pytest.mark.parametrize(
        ("flags", "error", "hint"),
        [
            (["--workers", "4..2"], "`4..2` is not a range of workers", "--workers 1..8"),
            (["--workers", "0"], "`0` is not a range of workers", "--workers 1..8"),
            (["--workers", "many"], "`many` is not a range of workers", "--workers 1..8"),
            (["--workers", "1000000"], "`1000000` asks for 1000000 workers; the limit is 1024", "--workers 1..1024"),
            (["--shards", ".."], "`..` is not a range of shards", "--shards 1..8"),
            (["--bandwidth", "10GB"], "`10GB` is not a bandwidth", "the units are bit, kbit, Mbit and Gbit"),
            (["--bandwidth", "0Gbit"], "`0Gbit` is not a bandwidth", "--bandwidth 1Gbit..25Gbit"),
            (["--bandwidth", "5Gbit..1Gbit"], "`5Gbit..1Gbit` ends below its beginning", "--bandwidth 1Gbit..25Gbit"),
            (
                ["--workers", "1..1024", "--bandwidth", "1kbit..25Gbit"],
                "combinations are asked for; the limit is 400",
                "narrow",
            ),
            (["--shards", "1..999"], "999 shards are asked for, but there are only 998 keys", "--shards 1..998"),
        ],
    )
    def test_what_cannot_be_planned(
        self, command: Command, tmp_path: Path, one_key_per_row: Path, flags: list[str], error: str, hint: str
    ) -> None:
        run = make_planted(tmp_path / "run", "network")
        record_facts(run, one_key_per_row)
        TestDiagnose.refused(command("plan", run.path, *flags), error, hint)

    @pytest.mark.parametrize("flags", [["--bandwidth", "1Gbit"], ["--shards", "2"]])
    def test_an_embedded_run_knows_no_network(self, command: Command, tmp_path: Path, flags: list[str]) -> None:
        run = make_embedded(tmp_path / "run")
        outcome = command("plan", run.path, *flags)
        TestDiagnose.refused(outcome, "a run with `--engine local` has no shards and no network", "`--engine ray`")

    def test_a_line_a_choice_and_the_best_of_each_pace(self, command: Command, tmp_path: Path) -> None:
        run = make_embedded(tmp_path / "run", cores=4)
        outcome = command("plan", run.path, "--workers", "1..4")
        assert outcome.code == 0
        head, *lines, foot, note = outcome.out.splitlines()
        assert note == "ranges: `paceline doctor` before the next run lets it tell more exactly"
        assert head.split()[:4] == ["pace", "workers", "shards", "links"]
        assert [line.split()[:3] for line in lines] == [
            [pace, workers, "–"] for pace in ("sync", "async") for workers in ("1", "2", "4")
        ]
        assert [line.split()[1] for line in lines if line.rstrip().endswith("best")] == ["4", "4"]
        assert foot == "from a run of 200,000 rows/s; its own simulation is off by 0%"

    def test_json(self, command: Command, tmp_path: Path) -> None:
        run = make_planted(tmp_path / "run", "network")
        flags = ["--workers", "2", "--shards", "1..2", "--bandwidth", "1Gbit..2Gbit"]
        outcome = command("plan", run.path, *flags, "--json")
        assert outcome.code == 0
        found = json.loads(outcome.out)
        assert found["rows_per_second"] == pytest.approx(12_500)
        assert found["replay_error"] < 0.05
        asked = [(one["pace"], one["workers"], one["shards"], one["bandwidth"]) for one in found["predictions"]]
        speeds = (1e9 / 8, 2e9 / 8)
        assert asked == [(pace, 2, n, speed) for pace in ("sync", "async") for speed in speeds for n in (1, 2)]
        for one in found["predictions"]:
            assert one["machines"] == 2 + one["shards"]
            assert one["rows_per_second_per_machine"] == pytest.approx(one["rows_per_second"] / one["machines"])
        best = [one for one in found["predictions"] if one["best"]]
        assert [one["pace"] for one in best] == ["sync", "async"]
        for one in best:
            rivals = [other for other in found["predictions"] if other["pace"] == one["pace"]]
            assert one["rows_per_second"] == max(other["rows_per_second"] for other in rivals)


class TestForeignFolders:
    """Run folders that someone else made, with sequences that change a terminal's title and clear its screen."""

    OBEYED = "\x1b]0;title\x07\x1b[2J"
    SHOWN = r"\x1b]0;title"

    @pytest.fixture
    def foreign(self, tmp_path: Path) -> RunFolder:
        run = make_run(tmp_path / "foreign", nodes=(self.OBEYED, "node-2", "node-3"), data=self.OBEYED)
        run.write_json("result.json", run.result | {"pace": self.OBEYED})
        return run

    def say(self, run: RunFolder) -> None:
        """Write a diagnosis with these sequences."""
        told = {"bottleneck": self.OBEYED, "sentence": f"It is {self.OBEYED}", "evidence": [self.OBEYED]}
        run.write_json("diagnosis.json", told | {"phases": {}, "recommendation": "", "nodes": []})

    def check(self, outcome: Outcome, times: int) -> None:
        assert outcome.code == 0, outcome.err
        assert outcome.out.count(self.SHOWN) == times
        assert not {"\x1b", "\x07"} & set(outcome.out + outcome.err)

    def test_diagnose(self, command: Command, foreign: RunFolder) -> None:
        self.check(command("diagnose", foreign.path), 1)

    def test_diagnose_of_another_job(self, command: Command, foreign: RunFolder) -> None:
        self.say(foreign)
        (foreign.path / "config.toml").write_text('job = "trace"\n')
        self.check(command("diagnose", foreign.path), 2)

    def test_compare(self, command: Command, foreign: RunFolder, tmp_path: Path) -> None:
        self.say(foreign)
        page, own = tmp_path / "page.html", make_run(tmp_path / "own")
        with (foreign.path / "config.toml").open("a") as file:
            file.write('"\\u001b[2Jkey" = 1\n')
        # The data and the bottleneck; the key is on a line of its own.
        self.check(command("compare", foreign.path, own.path, "--out", page), 2)
        assert b"\x1b" not in page.read_bytes()
        assert self.SHOWN.encode() in page.read_bytes()

    def test_report(self, command: Command, foreign: RunFolder, tmp_path: Path) -> None:
        self.check(command("report", foreign.path, "--out", tmp_path / "page.html"), 0)
        assert b"\x1b" not in (tmp_path / "page.html").read_bytes()
        assert self.SHOWN.encode() in (tmp_path / "page.html").read_bytes()

    @pytest.mark.parametrize(
        "content", ['{"a": 1}', '{"sentence": 1, "evidence": 5}', '{"sentence": "", "evidence": 5}']
    )
    def test_a_damaged_diagnosis(self, command: Command, foreign: RunFolder, content: str) -> None:
        (foreign.path / "config.toml").write_text('job = "trace"\n')
        (foreign.path / "diagnosis.json").write_text(content)
        refused = command("diagnose", foreign.path)
        assert (refused.code, refused.out) == (2, "")
        assert "diagnosis.json` is broken" in refused.err

    def test_evidence_that_is_not_text(self, command: Command, foreign: RunFolder) -> None:
        self.say(foreign)
        foreign.write_json("diagnosis.json", foreign.saved_diagnosis | {"evidence": [5, None, {"a": 1}]})
        (foreign.path / "config.toml").write_text('job = "trace"\n')
        assert command("diagnose", foreign.path).out.splitlines()[1:] == ["  5", "  None", "  {'a': 1}"]
