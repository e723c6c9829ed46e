"""Who ran where, how busy were nodes and connections, and what could the links between them carry?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from paceline.diagnosis.simulator import Topology
from paceline.engines import ENGINES
from paceline.settings import RunConfig
from paceline.telemetry.ceilings import Ceilings
from paceline.telemetry.records import ConnectionProbe, GpuChunk, NodeProbe, ShardChunk, StepSample, WorkerChunk

# A quantile, because a link may hold data back and then send it all at once.
HIGH = 0.9
# A connection that was busy for less than this share of the time tells nothing about its link.
BUSY_ENOUGH = 0.02
SATURATED = 0.9
# Other programs count from this many cores on.
TAKEN = 0.25
R = TypeVar("R", bound=WorkerChunk | ShardChunk | GpuChunk | StepSample)

AVERAGED = (
    "memory_bytes", "network_sent_bytes_per_second", "network_received_bytes_per_second", "loopback_bytes_per_second",
    "disk_read_bytes_per_second",
)  # fmt: skip


def best_links(ceilings: Ceilings | None) -> dict[str, float]:
    """What `paceline doctor` measured of the nodes' links, in bytes per second."""
    return {link.node: link.bytes_per_second for link in ceilings.links} if ceilings is not None else {}


def topology_of(config: RunConfig, ranks: Sequence[int], chunks: Sequence[WorkerChunk], shards: Sequence[ShardChunk],
              probes: Sequence[NodeProbe], connections: Sequence[ConnectionProbe],
              ceilings: Ceilings | None) -> Topology:  # fmt: skip
    """Who was where, with the links as the run saw them.

    A node's link is never faster than `ceilings` say, whatever single moments of the run suggest.
    """
    node_of = {chunk.rank: chunk.node for chunk in chunks}
    shard_node_of = {chunk.rank: chunk.node for chunk in shards}
    has_shards = ENGINES[config.engine].has_processes and config.exchange != "allreduce"
    # A shard that recorded nothing counts as a neighbour of the first worker.
    unknown = next(iter(node_of.values()))
    shard_nodes = [shard_node_of.get(rank, unknown) for rank in range(config.shards if has_shards else 0)]
    names = sorted({*(node_of[rank] for rank in ranks), *shard_nodes})
    machine_of = {name: next((probe.machine for probe in probes if probe.node == name), "") or name for name in names}
    machines = sorted(set(machine_of.values()))
    cores = [
        _free_cores({name for name in names if machine_of[name] == machine}, chunks, shards, probes)
        for machine in machines
    ]
    homes = {f"worker {rank}": node for rank, node in node_of.items()}
    homes |= {f"shard {rank}": node for rank, node in shard_node_of.items()}
    links = {name: _link(name, probes, connections, homes) for name in names}
    bandwidth = _bandwidths(links, best_links(ceilings))
    trips = [probe.least_round_trip_seconds for probe in connections if probe.least_round_trip_seconds > 0]
    return Topology(
        workers=tuple(names.index(node_of[rank]) for rank in ranks),
        shards=tuple(names.index(node) for node in shard_nodes),
        machines=tuple(machines.index(machine_of[name]) for name in names),
        cores=tuple(cores),
        bandwidth=tuple(bandwidth[name] for name in names),
        latency=statistics.median(trips) / 2 if trips else 0.0,
    )


def _free_cores(nodes: set[str], chunks: Sequence[WorkerChunk], shards: Sequence[ShardChunk],
                probes: Sequence[NodeProbe]) -> float:  # fmt: skip
    """How many cores of a machine with these nodes the run had to itself: all except those that others used. Less than
    a quarter of a core is mostly used by the run itself, on other threads.
    """
    first, last = min(chunk.time - chunk.seconds for chunk in chunks), max(chunk.time for chunk in chunks)
    own_probes = [probe for probe in probes if probe.node in nodes and probe.cores and first < probe.time <= last + 0.5]
    if not own_probes:
        return 1.0
    cores = len(own_probes[0].cores)
    busy = mean_of(own_probes, [sum(probe.cores) for probe in own_probes])
    ours = sum(
        sum(chunk.processor for chunk in own) / sum(chunk.seconds for chunk in own)
        for kind in (chunks, shards)
        for own in by_rank(chunk for chunk in kind if chunk.node in nodes).values()
    )
    others = max(0.0, busy - ours)
    return cores if others < TAKEN else max(cores / 4, cores - others)


class _Link(NamedTuple):
    """A node's link during the run: bytes per second that it carried, the share of the time in which it was busy, and
    the bytes per second at which TCP delivered over single connections.
    """

    carried: float
    busy: float
    delivered: float


def _bandwidths(links: Mapping[str, _Link | None], ceiling_of: Mapping[str, float]) -> dict[str, float]:
    """What the nodes' links can carry.

    A link that was busy nearly all the time carried as much as it can. A link that was often idle can carry at least
    what it did carry. It counts as fast as the best link, or as fast as TCP delivered over it, but never as faster than
    its ceiling.
    """
    best = max((link.carried for link in links.values() if link is not None), default=math.inf)
    found = {name: ceiling_of.get(name, math.inf) for name in links}
    for name, link in links.items():
        if link is not None:
            could = 0.0 if link.busy >= SATURATED else min(found[name], max(best, link.delivered))
            found[name] = max(link.carried, could)
    return found


def _link(node: str, probes: Sequence[NodeProbe], connections: Sequence[ConnectionProbe],
          homes: Mapping[str, str]) -> _Link | None:  # fmt: skip
    """The most that a node's link carried: per second, or over its connections to other nodes while they were busy.
    None if nothing went over it. `homes` are the nodes of roles such as `shard 0`.
    """
    carried = [
        max(probe.network_sent_bytes_per_second or 0.0, probe.network_received_bytes_per_second or 0.0)
        for probe in probes
        if probe.node == node
    ]
    used = []
    for probe in connections:
        ends = homes.get(f"{probe.role} {probe.rank}"), homes.get(probe.peer)
        if node in ends and ends[0] != ends[1] and probe.busy >= BUSY_ENOUGH:
            used.append(probe)
    if not used:
        return None
    rate = statistics.median(probe.delivered_bytes / (probe.busy * probe.seconds) for probe in used)
    return _Link(
        carried=max(_quantile(carried), rate),
        busy=_quantile([probe.busy for probe in used]),
        delivered=statistics.median(probe.delivery_bytes_per_second for probe in used),
    )


def _quantile(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * HIGH)] if values else 0.0


# -- averages


class NodeUse(NamedTuple):
    """A node over the run, on average: processor share, memory in use, bytes per second."""

    node: str
    cores: int
    cpu: float
    memory_bytes: float
    network_sent_bytes_per_second: float
    network_received_bytes_per_second: float
    loopback_bytes_per_second: float
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
