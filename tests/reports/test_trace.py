"""The trace is in Chrome's format, and its events are where the steps were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.reports.trace import write_trace
from paceline.run_folder import RunFolder
from paceline.telemetry.recorder import Telemetry
from paceline.telemetry.records import StepSample


def test_steps_and_phases_are_complete_events(run: RunFolder, tmp_path: Path) -> None:
    assert write_trace(run, tmp_path / "trace.json") == 120
    events = json.loads((tmp_path / "trace.json").read_bytes())["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert list(processes.values()) == ["node-1", "node-2", "node-3"]
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert sorted(threads.values()) == [f"worker {rank}" for rank in range(4)]
    steps = [e for e in events if e["ph"] == "X" and e["cat"] == "step"]
    first = Telemetry(run.path).read(StepSample)[0]
    assert steps[0]["ts"] == pytest.approx((first.time - first.seconds) * 1e6)
    assert steps[0]["dur"] == pytest.approx(first.seconds * 1e6)
    assert all((e["pid"], e["tid"]) in threads for e in steps)
    assert {e["ph"] for e in events} == {"M", "X", "C"}


def test_phases_lie_one_after_the_other_within_their_step(run: RunFolder, tmp_path: Path) -> None:
    write_trace(run, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_bytes())["traceEvents"]
    step, num_phases = None, 0
    for event in (e for e in events if e["ph"] == "X"):
        if event["cat"] == "step":
            step, at = event, event["ts"]
            continue
        assert step is not None
        assert event["ts"] == pytest.approx(at)
        at = event["ts"] + event["dur"]
        num_phases += 1
        assert at <= step["ts"] + step["dur"] + 1e-3
    assert num_phases >= 120


def test_a_run_without_samples_has_an_empty_trace(half_run: RunFolder, tmp_path: Path) -> None:
    assert write_trace(half_run, tmp_path / "trace.json") == 0
    assert json.loads((tmp_path / "trace.json").read_bytes())["traceEvents"] == []
