"""Where did the steps' time go? Shares of the phases by worker, and how far workers were apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.telemetry.meter import PHASES as TIMED
from paceline.telemetry.records import StepSample, WorkerChunk

PHASES = (*TIMED, "other")


class WorkerTime(NamedTuple):
    """A worker's whole recorded time. `phases` are seconds and add up to `seconds`."""

    rank: int
    node: str
    seconds: float
    rows: int
    phases: dict[str, float]


def phases_of(record: WorkerChunk | StepSample) -> dict[str, float]:
    """Seconds of each phase; `other` is time that no phase covers."""
    timed: dict[str, float] = {name: getattr(record, name) for name in TIMED}
    return timed | {"other": max(0.0, record.seconds - sum(timed.values()))}


def steps_of(sample: StepSample) -> str:
    """The step that a sample covers, or the first and the last one."""
    if sample.steps == 1:
        return f"step {sample.step:,}"
    return f"steps {sample.step - sample.steps + 1:,}–{sample.step:,}"


def label_of_steps(sample: StepSample) -> str:
    """Which steps of which worker a sample covers, and when."""
    return f"worker {sample.rank}, {steps_of(sample)}, at {sample.time:,.2f}\N{NO-BREAK SPACE}s"


def time_by_worker(chunks: Iterable[WorkerChunk]) -> list[WorkerTime]:
    """The sum of each worker's chunks, by rank."""
    found: dict[int, WorkerTime] = {}
    for chunk in chunks:
        so_far = found.get(chunk.rank, WorkerTime(chunk.rank, chunk.node, 0.0, 0, dict.fromkeys(PHASES, 0.0)))
        phases = {name: so_far.phases[name] + seconds for name, seconds in phases_of(chunk).items()}
        found[chunk.rank] = WorkerTime(
            chunk.rank, chunk.node or so_far.node, so_far.seconds + chunk.seconds, so_far.rows + chunk.rows, phases
        )
    return [found[rank] for rank in sorted(found)]


def phase_shares(workers: Sequence[WorkerTime]) -> dict[str, float]:
    """Shares of all workers' time, which add up to 1; empty if no time was recorded."""
    totals = {name: sum(worker.phases[name] for worker in workers) for name in PHASES}
    whole = sum(totals.values())
    return {name: seconds / whole for name, seconds in totals.items()} if whole > 0 else {}


class Leads(NamedTuple):
    """How many steps each worker was ahead of the slowest one: one row per rank, one column per time."""

    times: NDArray[np.float64]
    ranks: list[int]
    steps: NDArray[np.float64]


def leads(chunks: Sequence[WorkerChunk], num_times: int = 200) -> Leads | None:
    """How far apart workers were while all trained, interpolated between chunks; None for fewer than two."""
    ends: dict[int, list[tuple[float, int]]] = {}
    for chunk in sorted(chunks, key=lambda chunk: chunk.time):
        done = ends.setdefault(chunk.rank, [(max(0.0, chunk.time - chunk.seconds), 0)])
        done.append((chunk.time, done[-1][1] + chunk.steps))
    if len(ends) < 2:
        return None
    until = min(done[-1][0] for done in ends.values())
    times = np.linspace(0.0, until, num_times)
    ranks = sorted(ends)
    steps = np.array([np.interp(times, *np.array(ends[rank]).T) for rank in ranks])
    return Leads(times, ranks, steps - steps.min(axis=0))
