"""What did a run record, in the terms of the simulator?

Exact totals of chunks say what a step takes on average; samples of single steps say how it varies, and which part of it
was the processor's. Where roles outnumber a node's cores, time that a role spent waiting for a core is not its own:
there the processor's time counts; elsewhere the wall's.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from paceline.config import RunConfig
from paceline.data.datasets import open_for
from paceline.data.rows import EpochOrder
from paceline.data.sparse.dataset import Dataset
from paceline.data.sparse.reader import RowReader
from paceline.diagnosis.simulator import IDLE_SECONDS, Demand, Layout, Rules
from paceline.errors import DataError, PacelineError
from paceline.parameters.optimizers import width
from paceline.run_folder import Run
from paceline.telemetry.meter import PHASES
from paceline.telemetry.recorder import Telemetry
from paceline.telemetry.records import ConnectionProbe, NodeProbe, ShardChunk, StepSample, WorkerChunk
from paceline.training.pace import Pace

WARM_UP_SHARE = 0.1
# What a link carried for a moment says little, for it may keep some back and let it go at once.
HIGH = 0.9
# A connection that was busy for less of the time tells nothing about its link.
BUSY_ENOUGH = 0.02
SATURATED = 0.9
WINDOWS = 3
# Of what a role's processor did beyond its phases, as much is taking frames in and waking up for them as sending one
# takes, or so many times that for a shard, which reads a request and sends a reply. The rest comes from a slow link,
# which brings frames packet by packet.
RECEIVE_PER_PUSH = 1.0
SERVE_PER_PUSH = 1.5


NO_LINKS: Mapping[str, float] = {}
Chunk = TypeVar("Chunk", WorkerChunk, ShardChunk)


class NodeUse(NamedTuple):
    """A node over the run, on average: processor share, memory in use, bytes a second."""

    node: str
    cores: int
    cpu: float
    memory_bytes: float
    network_sent: float
    network_received: float
    disk_read: float
    pressure: dict[str, float]


class ConnectionUse(NamedTuple):
    """The connections between roles on average, as shares of the time: in which something was on the way, and of that
    in which it waited for the receiver, or for the send buffer.
    """

    busy: float
    receiver_limited: float
    buffer_limited: float


class Evidence(NamedTuple):
    """A run in the terms of the simulator, and what was measured of it."""

    config: RunConfig
    demands: list[list[Demand]]
    layout: Layout
    rules: Rules
    rows_per_second: float
    phases: dict[str, float]
    nodes: list[NodeUse]
    connections: ConnectionUse | None
    gathers_per_row: float
    """Weights that are looked up, by row; 0 where that is not known."""
    table_bytes: int
    """What they are looked up in."""

    @property
    def is_simulated(self) -> bool:
        """Whether the simulator knows such runs: how workers add up among themselves it does not."""
        return self.config.exchange != "allreduce"


def gather_evidence(run: Run, best_links: Mapping[str, float] = NO_LINKS) -> Evidence:
    """Read a run's telemetry. `DataError` where there is too little of it.

    A node's link carries no more than `best_links` says, in bytes a second, whatever moments of the run let hope for.
    """
    telemetry, config = Telemetry(run.path), run.config
    chunks, samples = _steady(telemetry.read(WorkerChunk)), telemetry.read(StepSample)
    if not chunks or not samples:
        is_there = (run.path / "telemetry").is_dir()
        hint = "train for some seconds at least" if is_there else "its folder `telemetry` is gone, or was never written"
        raise DataError(f"`{run.path}` has no telemetry to explain it by", hint)
    samples_of = _samples_of(chunks, samples)
    ranks = sorted(samples_of)
    shards, probes = telemetry.read(ShardChunk), telemetry.read(NodeProbe)
    connections = telemetry.read(ConnectionProbe)
    layout = _layout(config, ranks, chunks, shards, probes, connections, best_links)
    threads = len({sample.rank for sample in samples})
    if config.engine == "local" and threads < len(ranks):
        # Workers that take turns have no more cores than there are threads.
        layout = layout._replace(cores=tuple(min(cores, threads) for cores in layout.cores))
    machines = [layout.machines[node] for node in (*layout.workers, *layout.shards)]
    crowded = [machines.count(machine) > layout.cores[machine] for machine in layout.machines]
    demands = [
        _demands(
            [chunk for chunk in chunks if chunk.rank == rank],
            samples_of[rank],
            crowded[layout.workers[index]],
            [_steady([chunk for chunk in shards if chunk.rank == shard]) for shard in range(len(layout.shards))],
            config.dense,
        )
        for index, rank in enumerate(ranks)
    ]
    pace = Pace.of(config.pace)
    gathers, table_bytes = _gathers(config)
    return Evidence(
        config=config,
        demands=demands,
        layout=layout,
        rules=Rules(pace.staleness, pace.in_flight(config.dense)),
        rows_per_second=_rate(chunks),
        phases=_phases(chunks),
        nodes=_nodes(probes),
        connections=_connections(connections, chunks),
        gathers_per_row=gathers,
        table_bytes=table_bytes,
    )


def num_rows(config: RunConfig) -> int:
    """How many rows a run trains on; 0 where that cannot be seen from here."""
    try:
        return open_for(config).split("train").rows
    except PacelineError:
        return 0


def distinct_keys(config: RunConfig, rows: int, workers: int = 1) -> float:
    """How many keys batches of so many rows have, the mean over a few places of the data; 0 where it cannot be seen
    from here, or has not enough for so many workers.
    """
    try:
        dataset = Dataset(config.data)
        split = dataset.split("train")
        if not 0 < rows * workers <= split.rows:
            return 0.0
        reader = RowReader(dataset, EpochOrder([block.rows for block in split.blocks], config.seed))
        starts = [(split.rows - rows) * window // WINDOWS for window in range(WINDOWS)]
        return statistics.fmean(len(np.unique(reader.between(start, start + rows).keys)) for start in starts)
    except DataError:
        return 0.0


def _gathers(config: RunConfig) -> tuple[float, int]:
    """How many weights are looked up for a row, and in how many bytes; from the data, where it can be seen from here.

    A key that several rows of a batch have is looked up once.
    """
    try:
        dataset = Dataset(config.data)
    except DataError:
        return 0.0, 0
    split = dataset.split("train")
    rows = min(config.batch_size, split.rows)
    gathers = split.nonzeros / max(1, split.rows) if rows <= 1 else distinct_keys(config, rows) / rows
    return gathers, 4 * width(config.optimizer) * (dataset.features + 1)


def _steady(chunks: Sequence[Chunk]) -> list[Chunk]:
    """Chunks without each role's first, in which memory is touched for the first time; all where there are few."""
    kept = []
    for rank in {chunk.rank for chunk in chunks}:
        own = [chunk for chunk in chunks if chunk.rank == rank]
        kept += own[1:] if len(own) > 2 else own
    return kept


def _samples_of(chunks: Sequence[WorkerChunk], samples: Sequence[StepSample]) -> dict[int, list[StepSample]]:
    """Each worker's samples. Of those that take turns on a thread one is sampled for all: their chunks end at once."""
    found: dict[int, list[StepSample]] = {}
    for sample in samples:
        found.setdefault(sample.rank, []).append(sample)
    sampled_at = {chunk.time: chunk.rank for chunk in chunks if chunk.rank in found}
    ranks = {chunk.rank: chunk.rank if chunk.rank in found else sampled_at.get(chunk.time, -1) for chunk in chunks}
    return {rank: found[sampled] for rank, sampled in ranks.items() if sampled in found}


def _rate(chunks: Sequence[WorkerChunk]) -> float:
    """Rows a second of all workers together."""
    total = 0.0
    for rank in {chunk.rank for chunk in chunks}:
        own = [chunk for chunk in chunks if chunk.rank == rank]
        total += sum(chunk.rows for chunk in own) / max(1e-9, sum(chunk.seconds for chunk in own))
    return total


def _phases(chunks: Sequence[WorkerChunk]) -> dict[str, float]:
    """Shares of all workers' time; `other` is what was not timed."""
    seconds = max(1e-9, sum(chunk.seconds for chunk in chunks))
    shares = {name: sum(getattr(chunk, name) for chunk in chunks) / seconds for name in PHASES}
    return shares | {"other": max(0.0, 1 - sum(shares.values()))}


def _demands(chunks: Sequence[WorkerChunk], samples: Sequence[StepSample], crowded: bool,
             shards: Sequence[Sequence[ShardChunk]], dense: bool) -> list[Demand]:  # fmt: skip
    """A worker's steps, as many as were sampled, scaled so that their means are those of the exact totals."""
    samples = [sample for sample in samples if len(sample.replies) == len(shards)]
    if not samples:
        raise DataError("no step of this run was recorded with all of its shards", "train for some seconds more")
    samples = samples[int(len(samples) * WARM_UP_SHARE) :]
    steps = sum(chunk.steps for chunk in chunks)
    sampled = sum(sample.steps for sample in samples)
    scale = {}
    for name in ("input", "compute", "push", "rows"):
        exact = sum(getattr(chunk, name) for chunk in chunks) / steps
        # Every sample is drawn as often as any other, of however many steps it is.
        seen = statistics.fmean(getattr(sample, name) / sample.steps for sample in samples)
        scale[name] = exact / seen if seen > 0 else 1.0
    stretch = _stretch(samples) if crowded else 1.0
    # Whatever sending to shards takes beyond its work is waiting for a link, which the simulator lets it do anew.
    sends = bool(samples[0].replies)
    if sends:
        scale["push"] = min(1.0, scale["push"])
    processor = {
        name: statistics.fmean(getattr(sample, f"{name}_processor") / sample.steps for sample in samples) * scale[name]
        for name in ("input", "compute", "push")
    }
    push = processor["push"]
    # Taking a reply in is work, too; it shows in no phase, for most of the time there a worker waits.
    # Workers of dense models do not look for replies, and may copy much.
    most = math.inf if dense else RECEIVE_PER_PUSH * push
    receive = min(max(0.0, _work(chunks) - sum(processor.values())), most) if sends else 0.0
    service_scale = _service_scale(chunks, samples)
    served = [
        statistics.fmean(reply.service for reply in replies) * service_scale
        for replies in zip(*(sample.replies for sample in samples), strict=False)
    ]
    stretch_of = [
        mean / min(work, mean + SERVE_PER_PUSH * push) if work > 0 and mean > 0 else 1.0
        for mean, work in zip(served, map(_work, shards), strict=False)
    ]
    awake = _awake(chunks, samples, processor["compute"], crowded)
    # What idling costs a shard nobody has measured: as much as it does a worker, where it idles.
    shard_awake = awake if all(map(_idles, shards)) else 1.0
    found = []
    for sample in samples:
        one = 1 / sample.steps
        input_work = sample.input_processor if crowded else min(sample.input, sample.input_processor * 1.25)
        delay = max(0.0, sample.input - input_work * max(1.0, stretch))
        found.append(
            Demand(
                delay=delay * scale["input"] * one,
                input=input_work * scale["input"] * one,
                compute=(sample.compute_processor if crowded else sample.compute) * scale["compute"] * one,
                push=(sample.push_processor if sends or crowded else sample.push) * scale["push"] * one + receive,
                rows=round(sample.rows * scale["rows"] * one),
                service=tuple(
                    reply.service * service_scale / stretched
                    for reply, stretched in zip(sample.replies, stretch_of, strict=False)
                ),
                bytes_out=tuple(float(reply.bytes_sent) for reply in sample.replies),
                bytes_in=tuple(float(reply.bytes_received) for reply in sample.replies),
                awake=awake,
                shard_awake=shard_awake,
            )
        )
    return _spread([demand for demand in found if len(demand.service) == len(shards)], sampled / max(1, len(samples)))


def _spread(demands: list[Demand], steps: float) -> list[Demand]:
    """Demands that are means over so many steps, as single steps: these vary more, by the root of their number."""
    if steps <= 1 or not demands:
        return demands
    mean = statistics.fmean(demand.compute for demand in demands)

    def single(compute: float) -> float:
        return min(3 * mean, max(mean / 3, mean + (compute - mean) * math.sqrt(steps)))

    spread = [demand._replace(compute=single(demand.compute)) for demand in demands]
    correction = mean / statistics.fmean(demand.compute for demand in spread)
    return [demand._replace(compute=demand.compute * correction) for demand in spread]


def _stretch(samples: Sequence[StepSample]) -> float:
    """How many times longer work takes than the processor needs for it, because others have the core."""
    wall, processor = sum(s.compute for s in samples), sum(s.compute_processor for s in samples)
    return max(1.0, wall / processor) if processor > 0 else 1.0


def _work(chunks: Sequence[WorkerChunk] | Sequence[ShardChunk]) -> float:
    """Seconds that a role's processor spent on a step or request, but for looking for frames; 0 where nobody knows."""
    seconds = sum(chunk.processor - chunk.looked for chunk in chunks)
    count = sum(chunk.steps if isinstance(chunk, WorkerChunk) else chunk.requests for chunk in chunks)
    return max(0.0, seconds) / max(1, count)


def _awake(chunks: Sequence[WorkerChunk], samples: Sequence[StepSample], compute: float, crowded: bool) -> float:
    """How much of the time that steps took they would take without idling before them; 1 where most did not idle."""
    at_best = max(chunk.compute_in_company if crowded else chunk.compute_alone for chunk in chunks)
    idled = statistics.median(s.pull + s.wait + max(0.0, s.input - 2 * s.input_processor) for s in samples)
    return min(1.0, at_best / compute) if at_best > 0 and compute > 0 and idled >= IDLE_SECONDS else 1.0


def _idles(chunks: Sequence[ShardChunk]) -> bool:
    """Whether a shard mostly idles before a request."""
    idle = sum(chunk.seconds - chunk.processor for chunk in chunks)
    return idle >= IDLE_SECONDS * sum(chunk.requests for chunk in chunks)


def _service_scale(chunks: Sequence[WorkerChunk], samples: Sequence[StepSample]) -> float:
    replies = [reply.service for sample in samples for reply in sample.replies]
    exact = sum(chunk.service for chunk in chunks) / max(1, sum(chunk.replies for chunk in chunks))
    return exact / statistics.fmean(replies) if replies and exact > 0 else 1.0


def _layout(config: RunConfig, ranks: Sequence[int], chunks: Sequence[WorkerChunk], shards: Sequence[ShardChunk],
            probes: Sequence[NodeProbe], connections: Sequence[ConnectionProbe],
            best_links: Mapping[str, float]) -> Layout:  # fmt: skip
    """Who was where, with the links that were seen."""
    node_of = {chunk.rank: chunk.node for chunk in chunks}
    shard_node_of = {chunk.rank: chunk.node for chunk in shards}
    if config.engine == "local" or config.exchange == "allreduce":
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
    bandwidth = _bandwidths(links, best_links)
    trips = [probe.least_round_trip_seconds for probe in connections if probe.least_round_trip_seconds > 0]
    return Layout(
        workers=tuple(names.index(node_of[rank]) for rank in ranks),
        shards=tuple(names.index(node) for node in shard_nodes),
        machines=tuple(machines.index(machine_of[name]) for name in names),
        cores=tuple(cores),
        bandwidth=tuple(bandwidth[name] for name in names),
        latency=statistics.median(trips) / 2 if trips else 0.0,
    )


def _free_cores(nodes: set[str], chunks: Sequence[WorkerChunk], shards: Sequence[ShardChunk],
                probes: Sequence[NodeProbe]) -> float:  # fmt: skip
    """How many cores of a machine, which is these nodes, the run had to itself: all, less what others used."""
    first, last = min(chunk.time - chunk.seconds for chunk in chunks), max(chunk.time for chunk in chunks)
    own_probes = [probe for probe in probes if probe.node in nodes and probe.cores and first < probe.time <= last + 0.5]
    if not own_probes:
        return 1.0
    cores = len(own_probes[0].cores)
    busy = _mean(own_probes, [sum(probe.cores) for probe in own_probes])
    ours = 0.0
    for kind in (chunks, shards):
        for rank in {chunk.rank for chunk in kind}:
            own = [chunk for chunk in kind if chunk.rank == rank and chunk.node in nodes]
            if own:
                ours += sum(chunk.processor for chunk in own) / sum(chunk.seconds for chunk in own)
    return max(cores / 4, cores - max(0.0, busy - ours))


class _Link(NamedTuple):
    """What a node's link was seen to carry, in bytes a second, for which share of the time it was busy, and how fast
    TCP found single connections over it to deliver.
    """

    carried: float
    busy: float
    delivered: float


def _bandwidths(links: Mapping[str, _Link | None], best_links: Mapping[str, float]) -> dict[str, float]:
    """What the nodes' links can carry. One that was busy nearly all the time carried what it can. Of one that was idle
    for long that is only known to be at least what it did carry: it is taken to be like the best, and as fast as it
    delivered what it had, but no faster than was ever measured of it.
    """
    best = max((link.carried for link in links.values() if link is not None), default=math.inf)
    found = {}
    for name, link in links.items():
        most = best_links.get(name, math.inf)
        if link is None:
            found[name] = most
        elif link.busy >= SATURATED:
            found[name] = link.carried
        else:
            found[name] = max(link.carried, min(most, max(best, link.delivered)))
    return found


def _link(node: str, probes: Sequence[NodeProbe], connections: Sequence[ConnectionProbe], node_of: dict[int, str],
          shard_node_of: dict[int, str]) -> _Link | None:  # fmt: skip
    """The most that a node's link carried: in a second, or over its connections to other nodes while they were busy.
    None where nothing went over it.
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


def _mean(probes: Sequence[NodeProbe], values: Sequence[float | None]) -> float:
    """Of a value a probe, over the time that probes tell of: later ones tell of more of it. What is missing is 0."""
    told = sum((value or 0.0) * probe.seconds for probe, value in zip(probes, values, strict=True))
    return told / sum(probe.seconds for probe in probes)


def _nodes(probes: Sequence[NodeProbe]) -> list[NodeUse]:
    """Averages by node."""
    found = []
    for name in sorted({probe.node for probe in probes}):
        own = [probe for probe in probes if probe.node == name]
        counted = [probe for probe in own if probe.cores]
        found.append(
            NodeUse(
                node=name,
                cores=max(len(probe.cores) for probe in own),
                cpu=_mean(counted, [statistics.fmean(probe.cores) for probe in counted]) if counted else 0.0,
                memory_bytes=_mean(own, [probe.memory_bytes for probe in own]),
                network_sent=_mean(own, [probe.network_sent_bytes_per_second for probe in own]),
                network_received=_mean(own, [probe.network_received_bytes_per_second for probe in own]),
                disk_read=_mean(own, [probe.disk_read_bytes_per_second for probe in own]),
                pressure={
                    name: _mean(own, [probe.pressure.get(name) for probe in own])
                    for name in sorted({name for probe in own for name in probe.pressure})
                },
            )
        )
    return found


def _connections(probes: Sequence[ConnectionProbe], chunks: Sequence[WorkerChunk]) -> ConnectionUse | None:
    """Averages over all connections while workers trained; None where there are none."""
    last = max(chunk.time for chunk in chunks)
    own = [probe for probe in probes if probe.time <= last]
    seconds = sum(probe.seconds for probe in own)
    if not seconds:
        return None

    def mean(name: str) -> float:
        return float(sum(getattr(probe, name) * probe.seconds for probe in own)) / seconds

    return ConnectionUse(mean("busy"), mean("receiver_limited"), mean("buffer_limited"))
