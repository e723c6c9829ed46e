"""The command as its users meet it: what it prints, the files it leaves, its exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import paceline
from tests.conftest import Command, Outcome
from tests.diagnosis.folders import make_embedded, make_planted
from tests.reports.folders import make_half_run, make_run


def tree(path: Path) -> list[str]:
    return sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())


def test_generate_train_evaluate_predict(command: Command, tmp_path: Path) -> None:
    data, run, scores = tmp_path / "clicks", tmp_path / "run", tmp_path / "scores.parquet"
    made = command("generate", "clicks", "--rows", 3000, "--features", 2000, "--test-rows", 500, "--out", data)
    assert made.code == 0
    assert "3,000 training and 500 test rows, 2,000 features" in made.out
    trained = command("train", "--data", data, "--pace", "async", "--workers", 2, "--batch-size", 1, "--run", run)
    assert trained.code == 0
    assert trained.out.splitlines()[-1] == f"run: {run}"
    assert re.search(r"async\s+2\s+1\s+[\d,]+\s+\d+\.\d+\s+0\.\d+\s+0\.\d+\s+0\.\d+", trained.out)
    left = tree(run)
    assert {"telemetry/steps.jsonl", "telemetry/workers.jsonl"} <= set(left)
    assert [name for name in left if not name.startswith(("telemetry/", "tensorboard/"))] == [
        "config.toml", "metrics.jsonl", "model/model.json", "model/model.safetensors", "result.json", "roles.json",
    ]  # fmt: skip
    evaluated = command("evaluate", run, "--data", data, "--json")
    assert json.loads(evaluated.out) == pytest.approx({"rows": 500, **paceline.Run(run).result["test"]}, rel=1e-6)
    assert command("predict", run, "--data", data, "--out", scores).code == 0
    assert scores.exists()


def test_result_has_what_scripts_rely_on(clicks: Path, tmp_path: Path) -> None:
    result = paceline.train(data=clicks, run=tmp_path / "run", workers=2).result
    assert set(result) == {
        "status", "model", "pace", "engine", "device", "workers", "shards", "batch_size", "optimizer", "rows", "steps",
        "data_fingerprint", "startup_seconds", "train_seconds", "rows_per_second", "test", "wire", "max_staleness",
        "restarts", "recoveries", "peak_memory_bytes", "model_sha256",
    }  # fmt: skip
    assert set(result["test"]) == {"loss", "error", "auc"}
    assert result["wire"] == {"bytes_sent": 0, "bytes_received": 0, "bytes_per_row": 0.0, "refused": 0}
    assert result["recoveries"] == []
    assert result["restarts"] == {"workers": 0, "shards": 0}
    assert result["peak_memory_bytes"] > 0
    assert result["rows_per_second"] == pytest.approx(result["rows"] / result["train_seconds"])


def test_without_a_name_a_run_goes_under_runs(
    command: Command, clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {command("train", "--data", clicks).out.splitlines()[-1] for _ in range(2)}
    assert len(names) == 2
    for name in names:
        assert re.fullmatch(r"run: runs/\d{8}-\d{6}-logistic-sync(-2)?", name)


def test_no_test_rows_is_fine(command: Command, one_key_a_row: Path, tmp_path: Path) -> None:
    outcome = command("train", "--data", one_key_a_row, "--run", tmp_path / "run")
    assert outcome.code == 0
    assert paceline.Run(tmp_path / "run").result["test"] == {}


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["train"], "no data to train on", "--data DIR"),
        (["train", "--data", "nowhere"], "no dataset at `nowhere`", "paceline prepare"),
        (["train", "--data", "."], "is no dataset: it has no manifest.json", "paceline prepare"),
        (["train", "--dta", "x"], "No such option '--dta'", "Did you mean"),
        (["train", "--workers", "two"], "'two' is not a valid integer", "--help"),
        (["trian"], "No such command 'trian'", "'train'"),
        (["train", "--data", "x", "--pace", "-1"], "`pace` is `-1`", "`--pace async` never waits"),
        (["train", "recipe.toml"], "recipe `recipe.toml` cannot be read", "TOML"),
        (["resume", "nowhere"], "`nowhere` is no run folder", "`train` made"),
        (["evaluate", "nowhere", "--data", "x"], "`nowhere` is no run folder", "`train` made"),
        (["generate", "clicks", "--rows", "0", "--out", "x"], "`rows` is 0", "--rows 1"),
        (["generate", "clicks", "--rows", "5", "--features", "3", "--out", "x"], "`features` is 3", "Criteo"),
        (["prepare", "nowhere.tsv", "--out", "x"], "nowhere.tsv", ""),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_a_hint(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], error: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = command(*arguments)
    assert outcome.code == 2
    lines = outcome.err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("error: ")
    assert error in lines[0]
    assert lines[1].startswith("hint: ")
    assert hint in lines[1]
    assert not list(tmp_path.iterdir())


def test_an_existing_run_folder_is_left_alone(command: Command, clicks: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("precious")
    outcome = command("train", "--data", clicks, "--run", tmp_path / "run")
    assert outcome.code == 2
    assert "exists already" in outcome.err
    assert tree(tmp_path) == ["run/mine"]


def test_a_damaged_block_is_found_when_it_is_read(command: Command, clicks: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(clicks, tmp_path / "data")
    path = tmp_path / "data" / "train-00002.arrow"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    outcome = command("train", "--data", tmp_path / "data", "--run", tmp_path / "run", "--workers", 2)
    assert outcome.code == 2
    assert "train-00002.arrow` has a wrong checksum" in outcome.err
    assert paceline.Run(tmp_path / "run").result["status"] == "failed"


def test_divergence_fails_the_run(command: Command, clicks: Path, tmp_path: Path) -> None:
    outcome = command("train", "--data", clicks, "--optimizer", "sgd", "--learning-rate", 1e38, "--run", tmp_path / "r")
    assert outcome.code == 1
    assert "no longer a number" in outcome.err
    assert "--learning-rate" in outcome.err.splitlines()[-1]


def test_several_test_sources_follow_one_flag(command: Command, tmp_path: Path) -> None:
    for name, rows in (("a", 5), ("b", 3), ("c", 2)):
        (tmp_path / f"{name}.svm").write_text("1 1:1\n" * rows)
    a, b, c = (tmp_path / f"{name}.svm" for name in "abc")
    outcome = command("prepare", a, "--test", b, c, "--out", tmp_path / "data")
    assert outcome.code == 0
    assert "5 training and 5 test rows" in outcome.out


def test_seconds_alone_have_no_other_limit(command: Command, clicks: Path, tmp_path: Path) -> None:
    assert command("train", "--data", clicks, "--seconds", 0.3, "--run", tmp_path / "run").code == 0
    assert paceline.Run(tmp_path / "run").result["train_seconds"] >= 0.3


def test_demo(command: Command, tmp_path: Path) -> None:
    outcome = command("demo", "--rows", 3000, "--folder", tmp_path / "demo")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[0].split() == ["run", "pace", "workers", "batch", "rows/s", "seconds", "test", "loss", "error", "AUC"]
    assert [line.split()[1] for line in lines[1:3]] == ["sync", "async"]
    page = tmp_path / "demo" / "comparison.html"
    assert lines[3:] == [f"run: {tmp_path}/demo/run-{pace}" for pace in ("sync", "async")] + [f"comparison: {page}"]
    assert "run-sync and run-async" in page.read_text("utf-8")
    again = command("demo", "--rows", 3000, "--folder", tmp_path / "demo")
    assert again.out.splitlines()[-2].endswith("run-async-2")


def test_help_shows_an_example_for_each_command(command: Command) -> None:
    text = command("--help").out
    for name in ("demo", "generate", "prepare", "train", "resume", "evaluate", "predict", "report", "compare"):
        assert f"\n  paceline {name}" in text


class TestDiagnose:
    """What limited a run, from hand-made folders."""

    def test_words_then_numbers(self, command: Command, tmp_path: Path) -> None:
        """Of a run that was killed: there is telemetry, but no result."""
        run = make_planted(tmp_path / "run", "network")
        assert not (run.path / "result.json").exists()
        outcome = command("diagnose", run.path)
        assert outcome.code == 0
        sentence, *evidence = outcome.out.splitlines()
        assert sentence == run.diagnosis["sentence"]
        assert sentence.startswith("network-bound: with an infinitely fast network this run would be ")
        assert evidence == [f"  {line}" for line in run.diagnosis["evidence"]]

    def test_json_is_the_file(self, command: Command, tmp_path: Path) -> None:
        run = make_planted(tmp_path / "run", "shard-compute")
        outcome = command("diagnose", run.path, "--json")
        assert outcome.code == 0
        assert outcome.out == (run.path / "diagnosis.json").read_text()
        assert json.loads(outcome.out)["bottleneck"] == "shard-compute"

    @pytest.mark.parametrize("name", ["diagnose", "plan"])
    def test_a_folder_that_is_no_run(self, command: Command, tmp_path: Path, name: str) -> None:
        (tmp_path / "folder").mkdir()
        for path in (tmp_path / "folder", tmp_path / "nowhere"):
            self.refused(command(name, path), f"`{path}` is no run folder: it has no config.toml", "`train` made")
        assert tree(tmp_path) == []

    @pytest.mark.parametrize("name", ["diagnose", "plan"])
    def test_a_run_without_telemetry(self, command: Command, tmp_path: Path, name: str) -> None:
        run = make_run(tmp_path / "run", telemetry=False)
        self.refused(command(name, run.path), f"`{run.path}` has no telemetry", "`telemetry` is gone")
        assert not (run.path / "diagnosis.json").exists()
        half = make_half_run(tmp_path / "half")
        self.refused(command(name, half.path), f"`{half.path}` has no telemetry", "train for some seconds")

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
            (["--workers", "4..2"], "`4..2` is no range of workers", "--workers 1..8"),
            (["--workers", "0"], "`0` is no range of workers", "--workers 1..8"),
            (["--workers", "many"], "`many` is no range of workers", "--workers 1..8"),
            (["--workers", "1000000"], "`1000000` asks for 1000000 workers; 1024 is the most", "--workers 1..1024"),
            (["--shards", ".."], "`..` is no range of shards", "--shards 1..8"),
            (["--bandwidth", "10GB"], "`10GB` is no bandwidth", "bit, kbit, Mbit and Gbit are known"),
            (["--bandwidth", "0Gbit"], "`0Gbit` is no bandwidth", "--bandwidth 1Gbit..25Gbit"),
            (["--bandwidth", "5Gbit..1Gbit"], "`5Gbit..1Gbit` ends below its beginning", "--bandwidth 1Gbit..25Gbit"),
            (["--workers", "1..1024", "--bandwidth", "1kbit..25Gbit"], "combinations are asked for; 400", "narrow"),
            (["--shards", "1..999"], "999 shards are asked for, but there are only 998 keys", "--shards 1..998"),
        ],
    )
    def test_what_cannot_be_planned(
        self, command: Command, tmp_path: Path, one_key_a_row: Path, flags: list[str], error: str, hint: str
    ) -> None:
        run = make_planted(tmp_path / "run", "network", data=str(one_key_a_row))
        TestDiagnose.refused(command("plan", run.path, *flags), error, hint)

    @pytest.mark.parametrize("flags", [["--bandwidth", "1Gbit"], ["--shards", "2"]])
    def test_an_embedded_run_knows_no_network(self, command: Command, tmp_path: Path, flags: list[str]) -> None:
        run = make_embedded(tmp_path / "run")
        outcome = command("plan", run.path, *flags)
        TestDiagnose.refused(outcome, "an embedded run has no shards and sends nothing", "`--engine ray`")

    def test_a_line_a_choice_and_the_best_of_each_pace(self, command: Command, tmp_path: Path) -> None:
        run = make_embedded(tmp_path / "run", cores=4)
        outcome = command("plan", run.path, "--workers", "1..4")
        assert outcome.code == 0
        head, *lines, foot = outcome.out.splitlines()
        assert head.split()[:4] == ["pace", "workers", "shards", "links"]
        assert [line.split()[:3] for line in lines] == [
            [pace, workers, "–"] for pace in ("sync", "async") for workers in ("1", "2", "4")
        ]
        assert [line.split()[1] for line in lines if line.rstrip().endswith("best")] == ["4", "4"]
        assert foot == "from a run of 200,000 rows/s, which the same simulation is off by 0%"

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
            assert one["rows_per_second_a_machine"] == pytest.approx(one["rows_per_second"] / one["machines"])
        best = [one for one in found["predictions"] if one["best"]]
        assert [one["pace"] for one in best] == ["sync", "async"]
        for one in best:
            rivals = [other for other in found["predictions"] if other["pace"] == one["pace"]]
            assert one["rows_per_second"] == max(other["rows_per_second"] for other in rivals)


class TestCtrlC:
    """A real process and real signals."""

    def start(self, clicks: Path, run: Path, *more: str) -> subprocess.Popen[str]:
        arguments = ["train", "--data", str(clicks), "--run", str(run), *more]
        process = subprocess.Popen(
            [sys.executable, "-m", "paceline.cli", *arguments], stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        metrics = run / "metrics.jsonl"
        deadline = time.monotonic() + 60
        while not metrics.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert process.poll() is None, process.communicate()[1]
        return process

    @pytest.mark.parametrize("pace", ["sync", "async", "2"])
    def test_once_saves_and_resume_goes_on(self, clicks: Path, tmp_path: Path, pace: str, command: Command) -> None:
        flags = ["--pace", pace, "--workers", "2", "--batch-size", "8", "--epochs", "60", "--test-every", "6000"]
        process = self.start(clicks, tmp_path / "run", *flags)
        os.kill(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=20)
        assert process.returncode == 130
        assert "interrupted after" in err
        assert f"`paceline resume {tmp_path}/run` goes on" in err
        assert paceline.Run(tmp_path / "run").result["status"] == "interrupted"
        assert command("resume", tmp_path / "run").code == 0
        result = paceline.Run(tmp_path / "run").result
        assert (result["status"], result["rows"]) == ("done", 60 * 6000)
        assert len(paceline.Run(tmp_path / "run").metrics) == 60
        if pace == "sync":
            whole = command("train", "--data", clicks, "--run", tmp_path / "whole", *flags)
            assert whole.code == 0
            assert paceline.Run(tmp_path / "whole").result["model_sha256"] == result["model_sha256"]

    def test_sigterm_is_as_good(self, clicks: Path, tmp_path: Path, command: Command) -> None:
        process = self.start(clicks, tmp_path / "run", "--epochs", "200", "--test-every", "6000")
        process.terminate()
        _, err = process.communicate(timeout=20)
        assert process.returncode == 130
        assert "a checkpoint is saved" in err
        assert command("resume", tmp_path / "run").code == 0

    def test_twice_ends_at_once(self, clicks: Path, tmp_path: Path) -> None:
        process = self.start(clicks, tmp_path / "run", "--epochs", "100000", "--test-every", "6000")
        os.kill(process.pid, signal.SIGINT)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(timeout=5) == 130
        process.communicate()

    def test_kill_leaves_the_last_checkpoint(self, clicks: Path, tmp_path: Path, command: Command) -> None:
        """SIGKILL at any moment: what a checkpoint promised is there, and the end has the same bits."""
        flags = ["--pace", "sync", "--workers", "2", "--batch-size", "8", "--epochs", "80", "--test-every", "6000"]
        process = self.start(clicks, tmp_path / "run", *flags, "--checkpoint-every", "0.05")
        while not (tmp_path / "run" / "checkpoints" / "latest").exists():
            time.sleep(0.01)
        process.kill()
        process.communicate()
        assert command("resume", tmp_path / "run").code == 0
        assert command("train", "--data", clicks, "--run", tmp_path / "whole", *flags).code == 0
        shas = [paceline.Run(tmp_path / name).result["model_sha256"] for name in ("run", "whole")]
        assert shas[0] == shas[1]
        assert [m["rows"] for m in paceline.Run(tmp_path / "run").metrics] == [6000 * (i + 1) for i in range(80)]


def test_start_up_counts_from_the_moment_when_the_process_began() -> None:
    before = time.time()
    code = "import time; time.sleep(0.2); from paceline.cli import command_began; print(repr(command_began()))"
    began = float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
    # The system tells it in hundredths of a second.
    assert before - 0.02 <= began <= time.time() - 0.2
