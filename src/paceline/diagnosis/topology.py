"""Who ran where, and what could the links between them carry?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from paceline.diagnosis.simulator import Topology
from paceline.diagnosis.use import mean_of
from paceline.engines import ENGINES
from paceline.settings import RunConfig
from paceline.telemetry.ceilings import Ceilings
from paceline.telemetry.records import ConnectionProbe, NodeProbe, ShardChunk, WorkerChunk

# A quantile, because a link may hold data back and then send it all at once.
HIGH = 0.9
# A connection that was busy for less than this share of the time tells nothing about its link.
BUSY_ENOUGH = 0.02
SATURATED = 0.9


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
    if not ENGINES[config.engine].has_processes or config.exchange == "allreduce":
        shard_nodes = []
    else:
        nowhere = next(iter(node_of.values()))
        shard_nodes = [shard_node_of.get(rank, nowhere) for rank in range(config.shards)]
    names = sorted({*(node_of[rank] for rank in ranks), *shard_nodes})
    machine_of = {name: next((probe.machine for probe in probes if probe.node == name), "") or name for name in names}
    machines = sorted(set(machine_of.values()))
    cores = [
        _free_cores({name for name in names if machine_of[name] == machine}, chunks, shards, probes)
        for machine in machines
    ]
    links = {name: _link(name, probes, connections, node_of, shard_node_of) for name in names}
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
    """How many cores of a machine with these nodes the run had to itself: all except those that others used."""
    first, last = min(chunk.time - chunk.seconds for chunk in chunks), max(chunk.time for chunk in chunks)
    own_probes = [probe for probe in probes if probe.node in nodes and probe.cores and first < probe.time <= last + 0.5]
    if not own_probes:
        return 1.0
    cores = len(own_probes[0].cores)
    busy = mean_of(own_probes, [sum(probe.cores) for probe in own_probes])
    ours = 0.0
    for kind in (chunks, shards):
        for rank in {chunk.rank for chunk in kind}:
            own = [chunk for chunk in kind if chunk.rank == rank and chunk.node in nodes]
            if own:
                ours += sum(chunk.processor for chunk in own) / sum(chunk.seconds for chunk in own)
    return max(cores / 4, cores - max(0.0, busy - ours))


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
    found = {}
    for name, link in links.items():
        most = ceiling_of.get(name, math.inf)
        if link is None:
            found[name] = most
        elif link.busy >= SATURATED:
            found[name] = link.carried
        else:
            found[name] = max(link.carried, min(most, max(best, link.delivered)))
    return found


def _link(node: str, probes: Sequence[NodeProbe], connections: Sequence[ConnectionProbe], node_of: dict[int, str],
          shard_node_of: dict[int, str]) -> _Link | None:  # fmt: skip
    """The most that a node's link carried: per second, or over its connections to other nodes while they were busy.
    None if nothing went over it.
    """
    carried = [
        max(probe.network_sent_bytes_per_second or 0.0, probe.network_received_bytes_per_second or 0.0)
        for probe in probes
        if probe.node == node
    ]
    homes = {"worker": node_of, "shard": shard_node_of}
    rates, busy, delivered = [], [], []
    for probe in connections:
        ends = homes[probe.role].get(probe.rank), _home(probe.peer, homes)
        if node in ends and ends[0] != ends[1] and probe.busy >= BUSY_ENOUGH:
            rates.append(probe.delivered_bytes / (probe.busy * probe.seconds))
            busy.append(probe.busy)
            delivered.append(probe.delivery_bytes_per_second)
    if not rates:
        return None
    return _Link(
        max(_quantile(carried, HIGH), statistics.median(rates)), _quantile(busy, HIGH), statistics.median(delivered)
    )


def _home(name: str, homes: dict[str, dict[int, str]]) -> str | None:
    """The node of a role given by name, such as `shard 0`."""
    role, _, rank = name.partition(" ")
    return homes[role].get(int(rank)) if role in homes and rank.isdecimal() else None


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)] if values else 0.0
