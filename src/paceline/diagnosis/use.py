"""How much were nodes and connections used? Averages of the probes over a run."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from paceline.telemetry.records import ConnectionProbe, NodeProbe, ShardChunk, StepSample, WorkerChunk

R = TypeVar("R", bound=WorkerChunk | ShardChunk | StepSample)

AVERAGED = (
    "memory_bytes", "network_sent_bytes_per_second", "network_received_bytes_per_second", "disk_read_bytes_per_second",
)  # fmt: skip


class NodeUse(NamedTuple):
    """A node over the run, on average: processor share, memory in use, bytes per second."""

    node: str
    cores: int
    cpu: float
    memory_bytes: float
    network_sent_bytes_per_second: float
    network_received_bytes_per_second: float
    disk_read_bytes_per_second: float
    pressure: dict[str, float]


class ConnectionUse(NamedTuple):
    """The connections between roles, on average, as shares of the time: with data in flight (`busy`), and of that,
    waiting for the receiver or for the send buffer.
    """

    busy: float
    receiver_limited: float
    buffer_limited: float


def node_use(probes: Sequence[NodeProbe]) -> list[NodeUse]:
    """Averages by node."""
    found = []
    for name in sorted({probe.node for probe in probes}):
        own = [probe for probe in probes if probe.node == name]
        counted = [probe for probe in own if probe.cores]
        found.append(
            NodeUse(
                node=name,
                cores=max(len(probe.cores) for probe in own),
                cpu=mean_of(counted, [statistics.fmean(probe.cores) for probe in counted]) if counted else 0.0,
                **{name: mean_of(own, [getattr(probe, name) for probe in own]) for name in AVERAGED},
                pressure={
                    name: mean_of(own, [probe.pressure.get(name) for probe in own])
                    for name in sorted({name for probe in own for name in probe.pressure})
                },
            )
        )
    return found


def connection_use(probes: Sequence[ConnectionProbe], chunks: Sequence[WorkerChunk]) -> ConnectionUse | None:
    """Averages over all connections while workers trained; None if there are none."""
    last = max(chunk.time for chunk in chunks)
    own = [probe for probe in probes if probe.time <= last]
    seconds = sum(probe.seconds for probe in own)
    if not seconds:
        return None

    shares = [sum(getattr(probe, name) * probe.seconds for probe in own) / seconds for name in ConnectionUse._fields]
    return ConnectionUse(*shares)


def by_rank(records: Iterable[R]) -> dict[int, list[R]]:
    """Records of workers or of shards, by their rank."""
    found: dict[int, list[R]] = {}
    for record in records:
        found.setdefault(record.rank, []).append(record)
    return dict(sorted(found.items()))


def mean_of(probes: Sequence[NodeProbe], values: Sequence[float | None]) -> float:
    """The mean of one value per probe, weighted by the time that each probe covers. Missing values count as 0."""
    told = sum((value or 0.0) * probe.seconds for probe, value in zip(probes, values, strict=True))
    return told / sum(probe.seconds for probe in probes)
