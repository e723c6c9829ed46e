"""What real embedded runs record of themselves: all of their time, all of their steps, and every worker."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline.errors import InterruptedRunError
from paceline.run import resume
from paceline.run_folder import RunFolder
from paceline.telemetry.meter import PHASES
from paceline.telemetry.recorder import Telemetry
from paceline.telemetry.records import NodeProbe, StepSample, WorkerChunk
from paceline.training.coordinator import Coordinator
from paceline.training.embedded import backend as embedded
from paceline.training.embedded.loops import StepLoop

PACES = [
    pytest.param({"pace": "async", "workers": 2, "batch_size": 100}, id="async"),
    pytest.param({"pace": "async", "workers": 2, "batch_size": 1}, id="async-batch-1"),
    pytest.param({"pace": 4, "workers": 3}, id="pace-4"),
    pytest.param({"pace": "sync", "workers": 2}, id="sync"),
    pytest.param({"pace": "sync", "workers": 5, "batch_size": 7}, id="sync-shared-threads"),
]


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads at pace sync."""
    monkeypatch.setattr(embedded, "num_cores", lambda: 2)


def chunks_of(run: RunFolder) -> list[WorkerChunk]:
    return Telemetry(run.path).read(WorkerChunk)


@pytest.mark.parametrize("flags", PACES)
def test_every_row_and_step_is_in_one_chunk(clicks: Path, tmp_path: Path, flags: dict[str, Any]) -> None:
    run = paceline.train(data=clicks, run=tmp_path / "run", epochs=3, test_every=5_000, **flags)
    chunks = chunks_of(run)
    assert sum(chunk.rows for chunk in chunks) == run.result["rows"] == 18_000
    steps = Counter[int]()
    for chunk in chunks:
        steps[chunk.rank] += chunk.steps
    assert sorted(steps) == list(range(flags["workers"]))
    if flags["pace"] == "sync":
        # All take all clocks.
        assert set(steps.values()) == {run.result["steps"]}
    else:
        batch = run.result["batch_size"]
        assert steps.total() == pytest.approx(18_000 / batch, rel=0.05)
        assert steps.total() >= 18_000 / batch


@pytest.fixture
def at_work(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """By a thread's first rank, the wall-clock seconds from the beginning to the end of its segments."""
    seconds = Counter[int]()

    def timed(run: Callable[[Any], None]) -> Callable[[Any], None]:
        def timed_run(thread: Any) -> None:
            began = time.perf_counter()
            run(thread)
            seconds[thread.meter.rank] += time.perf_counter() - began  # type: ignore[assignment]

        return timed_run

    monkeypatch.setattr(StepLoop, "run", timed(StepLoop.run))
    return seconds


@pytest.mark.parametrize("flags", PACES)
def test_phases_add_up_to_the_time_of_training(
    clicks: Path, tmp_path: Path, at_work: Counter[int], flags: dict[str, Any]
) -> None:
    run = paceline.train(data=clicks, run=tmp_path / "run", seconds=0.5, test_every=100_000, **flags)
    chunks = chunks_of(run)
    assert chunks
    for chunk in chunks:
        phases = {name: getattr(chunk, name) for name in PHASES}
        assert sum(phases.values()) == pytest.approx(chunk.seconds)
        assert all(seconds >= -1e-9 for seconds in phases.values())
        assert chunk.pull == chunk.push == 0
        assert chunk.processor >= 0
    for rank, whole in at_work.items():
        own = [chunk for chunk in chunks if chunk.rank == rank]
        spent = sum(chunk.seconds for chunk in own)
        assert whole - max(0.05 * whole, 0.005 * len(own)) <= spent <= whole
        assert sum(chunk.processor for chunk in own) <= 1.01 * spent + 0.01
    assert max(at_work.values()) <= run.result["train_seconds"]


def test_chunks_come_in_order_and_do_not_overlap(clicks: Path, tmp_path: Path) -> None:
    run = paceline.train(data=clicks, run=tmp_path / "run", seconds=0.5, pace="async", workers=2, test_every=60_000)
    for rank in range(2):
        own = [chunk for chunk in chunks_of(run) if chunk.rank == rank]
        times = [chunk.time for chunk in own]
        assert len(times) > 1
        assert times == sorted(times)
        spent = [chunk.seconds for chunk in own[1:]]
        gaps = [after - before for before, after in pairwise(times)]
        # A chunk ends with the last mark before it was taken, so that one may begin a little before the last was taken.
        assert all(seconds < gap + 0.2 for seconds, gap in zip(spent, gaps, strict=True))


def test_workers_that_share_a_thread_have_chunks_of_their_own(clicks: Path, tmp_path: Path) -> None:
    """Four workers in step on two threads."""
    run = paceline.train(data=clicks, run=tmp_path / "run", pace="sync", workers=4, epochs=10)
    chunks = chunks_of(run)
    assert {chunk.rank for chunk in chunks} == {0, 1, 2, 3}
    for chunk in chunks:
        # At least half of the time another one has the thread.
        assert chunk.wait >= 0.499 * chunk.seconds
    assert {sample.rank for sample in Telemetry(run.path).read(StepSample)} == {0, 2}


def test_samples_are_of_the_steps_that_were(clicks: Path, tmp_path: Path) -> None:
    run = paceline.train(data=clicks, run=tmp_path / "run", pace="async", workers=2, batch_size=100, epochs=5)
    samples = Telemetry(run.path).read(StepSample)
    assert sum(sample.rows for sample in samples) == run.result["rows"]  # so few that all are kept
    assert samples
    for sample in samples:
        assert sample.steps == -(-sample.rows // 100)
        assert sample.seconds == pytest.approx(sum(getattr(sample, name) for name in PHASES))
        assert 0 < sample.compute_processor <= 1.05 * sample.compute + 0.001


def test_a_resumed_run_adds_to_what_it_had(clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted after each of its first two evaluations."""
    evaluate = Coordinator._evaluate

    def evaluate_and_stop(coordinator: Coordinator) -> None:
        evaluate(coordinator)
        coordinator._interrupted = coordinator.progress.position < 18_000

    monkeypatch.setattr(Coordinator, "_evaluate", evaluate_and_stop)
    with pytest.raises(InterruptedRunError):
        paceline.train(data=clicks, run=tmp_path / "run", epochs=3, test_every=6_000)
    with pytest.raises(InterruptedRunError):
        resume(tmp_path / "run")
    run = resume(tmp_path / "run")
    assert run.result["rows"] == 18_000
    assert sum(chunk.rows for chunk in chunks_of(run)) == 18_000
    for kind in (WorkerChunk, NodeProbe):
        times = [record.time for record in Telemetry(run.path).read(kind)]
        assert times == sorted(times)
        assert times[0] >= 0
