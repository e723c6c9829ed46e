"""`demo` as users meet it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.run_folder import RunFolder
from tests.conftest import Command
from tests.reports.folders import DIAGNOSIS
from tests.reports.test_markup import Reader

FEW = ("demo", "--rows", 3000, "--folder")


def test_demo(command: Command, tmp_path: Path) -> None:
    outcome = command(*FEW, tmp_path / "demo")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    titles = "run pace workers batch rows/s seconds test loss baseline error AUC"
    assert lines[0].split() == titles.split()
    assert [line.split()[1] for line in lines[1:3]] == ["sync", "async"]
    page = tmp_path / "demo" / "comparison.html"
    assert " has the lowest test loss, " in lines[3]
    runs = [f"run: {tmp_path}/demo/run-{pace}" for pace in ("sync", "async")]
    assert lines[lines.index(runs[0]) :][:3] == [*runs, "next:"]
    assert lines[-1] == f"comparison: {page}"
    again = command(*FEW, tmp_path / "demo")
    assert f"run: {tmp_path}/demo/run-async-2" in again.out.splitlines()


def test_its_page_is_a_story(command: Command, tmp_path: Path) -> None:
    """A question, who won, curves, what each run says, and what to try next; all of it true of these runs."""
    assert command(*FEW, tmp_path / "demo").code == 0
    page = (tmp_path / "demo" / "comparison.html").read_text("utf-8")
    parts = ("3,000 clicks: sync or async?", "has the lowest test loss", "<h2>Learning", "<h2>What each run says",
             "<h2>What to try next")  # fmt: skip
    places = [page.rindex(part) for part in parts]
    assert places == sorted(places)
    assert "same 3,000 rows for 3 seconds, or until it had passed over them 10 times" in page
    for pace in ("sync", "async"):
        run = RunFolder(tmp_path / "demo" / f"run-{pace}")
        assert run.result["rows"] == 10 * 3000 or run.result["train_seconds"] >= 3
        assert len(run.metrics) > 2
        # Such a run is too short to tell what limits it, and the page says so.
        told = run.saved_diagnosis["sentence"]
        assert "too short to tell; train for at least " in told
        assert f"{told[:1].upper()}{told[1:]}" in page
    assert 'aria-label="Test loss, by rows"' in page


@pytest.fixture
def diagnosed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What runs of the demo say about themselves, by their folders' names."""
    said: dict[str, Any] = {}

    def diagnose(run: RunFolder) -> None:
        run.write_json("diagnosis.json", {**DIAGNOSIS, **said[run.path.name]})

    monkeypatch.setattr("paceline.diagnosis.explain.ensure_diagnosis", diagnose)
    return said


def test_what_to_try_next_is_what_the_diagnoses_advise(
    command: Command, tmp_path: Path, diagnosed: dict[str, Any]
) -> None:
    advice = {"try": "`--pace async`", "flags": "--pace async", "gain": 3.4, "interval": [3.1, 3.6]}
    diagnosed["run-sync"] = {"sentence": "worker-bound: try `--pace async`.", "advice": [advice]}
    diagnosed["run-async"] = {"sentence": "worker-bound on a busy machine.", "bottleneck": "input", "taken_cores": 1.5}
    demo = tmp_path / "demo"
    outcome = command(*FEW, demo)
    text = Reader((demo / "comparison.html").read_text("utf-8")).text
    commands = [
        f"paceline train {demo}/run-sync/config.toml --pace async --run {demo}/run-sync-pace-async",
        f"paceline train {demo}/run-async/config.toml --run {demo}/run-async-again",
    ]
    for line in commands:
        assert f"  {line}" in outcome.out.splitlines()
        assert line in text
    for said in ("Worker-bound: try --pace async.", "run-sync would be 3.1–3.6× as fast with --pace async",
                 "Worker-bound on a busy machine.", "bottleneck", "network"):  # fmt: skip
        assert said in text
    assert "run-sync: Worker-bound: try --pace async." in outcome.out.splitlines()


def test_its_commands_run(command: Command, tmp_path: Path, diagnosed: dict[str, Any]) -> None:
    diagnosed |= {f"run-{pace}": {"needed_seconds": 1, "sentence": "too short"} for pace in ("sync", "async")}
    demo = tmp_path / "demo"
    told = command(*FEW, demo).out.partition("next:\n")[2].splitlines()
    longer = [line.split()[1:] for line in told if " --seconds " in line]
    assert len(longer) == 1
    assert command(*longer[0]).code == 0
    assert json.loads((Path(longer[0][-1]) / "result.json").read_text())["status"] == "done"
