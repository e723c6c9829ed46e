"""Phases add up, and leads are those of the workers' steps."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.reports.phases import leads, phase_shares, time_by_worker
from paceline.telemetry.records import WorkerChunk


def chunk(rank: int, time: float, steps: int, **phases: float) -> WorkerChunk:
    made = WorkerChunk(time=time, rank=rank, seconds=1.0, processor=0.5, steps=steps, rows=10 * steps)
    for name, seconds in phases.items():
        setattr(made, name, seconds)
    return made


def test_phases_add_up_to_the_time() -> None:
    chunks = [chunk(1, 1.0, 10, compute=0.5), chunk(0, 1.0, 20, input=0.25, wait=0.5), chunk(1, 2.0, 10, pull=0.75)]
    first, second = time_by_worker(chunks)
    assert first.phases == {"input": 0.25, "pull": 0.0, "compute": 0.0, "push": 0.0, "wait": 0.5, "other": 0.25}
    assert (second.seconds, second.rows) == (2.0, 200)
    shares = phase_shares([first, second])
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["compute"] == pytest.approx(0.5 / 3)
    assert phase_shares([]) == {}


def test_leads_are_over_the_slowest() -> None:
    chunks = [chunk(rank, float(second), 10 * (rank + 1)) for second in (1, 2, 3) for rank in (0, 1)]
    apart = leads(chunks)
    assert apart is not None
    assert apart.ranks == [0, 1]
    np.testing.assert_allclose(apart.steps[0], 0)
    np.testing.assert_allclose(apart.steps[1], 10 * apart.times)
    assert leads(chunks[::2]) is None
