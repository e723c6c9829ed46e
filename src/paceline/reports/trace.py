"""Where did single steps spend their time, to the microsecond? A file for trace viewers such as ui.perfetto.dev.

The format is Chrome's trace events: one process per node, one thread per worker, steps and phases as complete events
(`X`) in microseconds since training began, and the nodes' processors and memory as counters (`C`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from paceline.files import replace_file
from paceline.reports.phases import steps_of
from paceline.run_folder import RunFolder
from paceline.telemetry.meter import PHASES
from paceline.telemetry.recorder import Telemetry
from paceline.telemetry.records import NodeProbe, StepSample, WorkerChunk

Event = dict[str, Any]


def write_trace(run: RunFolder, out: Path) -> int:
    """Write the run's sampled steps; returns how many there are."""
    telemetry = Telemetry(run.path)
    samples, probes = telemetry.read(StepSample), telemetry.read(NodeProbe)
    node_of = {chunk.rank: chunk.node for chunk in telemetry.read(WorkerChunk)}
    ranks = sorted({sample.rank for sample in samples})
    nodes = sorted({node_of.get(rank, "") for rank in ranks} | {probe.node for probe in probes})
    process_of = {node: number for number, node in enumerate(nodes, start=1)}
    events: list[Event] = [_named("process_name", node or "workers", process_of[node]) for node in nodes]
    events += [_named("thread_name", f"worker {rank}", process_of[node_of.get(rank, "")], rank) for rank in ranks]
    for sample in samples:
        events += _step(sample, process_of[node_of.get(sample.rank, "")])
    events += _counters(probes, process_of)
    replace_file(out, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}).encode())
    return len(samples)


def _named(kind: str, name: str, process: int, thread: int = 0) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _step(sample: StepSample, process: int) -> list[Event]:
    """The step, and its phases one after another: only their durations are known."""
    at = (sample.time - sample.seconds) * 1e6
    place = {"ph": "X", "cat": "step", "pid": process, "tid": sample.rank}
    replies = [
        {"queue": r.queue, "held": r.held, "service": r.service, "sent": r.bytes_sent, "received": r.bytes_received}
        for r in sample.replies
    ]
    told = {"step": sample.step, "rows": sample.rows, "replies": replies}
    events: list[Event] = [{**place, "name": steps_of(sample), "ts": at, "dur": sample.seconds * 1e6, "args": told}]
    for name in PHASES:
        lasted = getattr(sample, name) * 1e6
        if lasted > 0:
            events.append({**place, "cat": "phase", "name": name, "ts": at, "dur": lasted})
            at += lasted
    return events


def _counters(probes: Iterable[NodeProbe], process_of: dict[str, int]) -> list[Event]:
    events: list[Event] = []
    for probe in probes:
        place = {"ph": "C", "pid": process_of[probe.node], "tid": 0, "ts": probe.time * 1e6}
        if probe.cores:
            share = 100 * sum(probe.cores) / len(probe.cores)
            events.append({**place, "name": "processor, %", "args": {"all cores": share}})
        events.append({**place, "name": "memory, MB", "args": {"in use": probe.memory_bytes / 1e6}})
    return events
