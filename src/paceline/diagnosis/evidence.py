"""What did a run record, in the terms of the simulator?

The exact totals of chunks give the mean time of a step. Samples of single steps tell how it varies, and how much of it
was processor time. If there are more roles than cores on a node, the time that a role waits for a core is not its own
work: then processor time counts, otherwise wall time.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from paceline.diagnosis.simulator import IDLE_SECONDS, Demand, PaceRules, Topology
from paceline.diagnosis.topology import ConnectionUse, NodeUse, by_rank, connection_use, node_use, topology_of
from paceline.engines import ENGINES
from paceline.errors import DataError
from paceline.run_folder import RunFolder
from paceline.settings import RunConfig
from paceline.telemetry.facts import Facts
from paceline.telemetry.meter import PHASES
from paceline.telemetry.recorder import Telemetry
from paceline.telemetry.records import ConnectionProbe, NodeProbe, ShardChunk, StepSample, WorkerChunk
from paceline.training.pace import Pace

WARM_UP_SHARE = 0.1
# How much of a role's processor time outside its phases counts as receiving frames, as multiples of what sending one
# takes. A shard reads a request and sends a reply. The rest is due to a slow link.
RECEIVE_PER_PUSH = 1.0
SERVE_PER_PUSH = 1.5

Chunk = TypeVar("Chunk", WorkerChunk, ShardChunk)


class Evidence(NamedTuple):
    """A run in the terms of the simulator, and what was measured of it."""

    config: RunConfig
    facts: Facts
    demands: list[list[Demand]]
    topology: Topology
    rules: PaceRules
    rows_per_second: float
    phases: dict[str, float]
    nodes: list[NodeUse]
    connections: ConnectionUse | None
    gathers_per_second: float
    """Weights that are looked up per second; 0 if that is not known."""

    @property
    def is_simulated(self) -> bool:
        """Whether the simulator can replay such a run. It does not know allreduce."""
        return self.config.exchange != "allreduce"


def gather_evidence(run: RunFolder) -> Evidence:
    """Read a run's telemetry. `DataError` if there is too little of it."""
    telemetry, config, facts = Telemetry(run.path), run.config, run.facts
    chunks, samples = _steady(telemetry.read(WorkerChunk)), telemetry.read(StepSample)
    if not chunks or not samples:
        is_there = (run.path / "telemetry").is_dir()
        hint = "train for at least a few seconds" if is_there else "its folder `telemetry` is missing"
        raise DataError(f"`{run.path}` has no telemetry that could explain it", hint)
    samples_of = _samples_of(chunks, samples)
    ranks = sorted(samples_of)
    shards, probes = telemetry.read(ShardChunk), telemetry.read(NodeProbe)
    connections = telemetry.read(ConnectionProbe)
    topology = topology_of(config, ranks, chunks, shards, probes, connections, facts.ceilings)
    threads = len({sample.rank for sample in samples})
    if not ENGINES[config.engine].has_processes and threads < len(ranks):
        # Workers that take turns use no more cores than there are threads.
        topology = topology._replace(cores=tuple(min(cores, threads) for cores in topology.cores))
    machines = [topology.machines[node] for node in (*topology.workers, *topology.shards)]
    crowded = [machines.count(machine) > topology.cores[machine] for machine in topology.machines]
    chunks_of, shard_chunks_of = by_rank(chunks), by_rank(_steady(shards))
    served = [shard_chunks_of.get(shard, []) for shard in range(len(topology.shards))]
    demands = [
        _demands(chunks_of[rank], samples_of[rank], crowded[node], served, facts.traits.keyed)
        for rank, node in zip(ranks, topology.workers, strict=True)
    ]
    pace, speed = Pace.of(config.pace), _rate(chunks)
    evidence = Evidence(
        config=config,
        facts=facts,
        demands=demands,
        topology=topology,
        rules=PaceRules(pace.staleness, pace.in_flight(facts.traits.keyed)),
        rows_per_second=speed,
        phases=_phases(chunks),
        nodes=node_use(probes),
        connections=connection_use(connections, chunks),
        gathers_per_second=speed * _gathers_per_row(facts, config.batch_size),
    )
    _check(evidence, run)
    return evidence


def _check(evidence: Evidence, run: RunFolder) -> None:
    """Refuse what the simulator cannot replay. Only damaged records give such evidence."""
    topology, steps = evidence.topology, [demand for own in evidence.demands for demand in own]
    parts = [(d.delay, d.input, d.compute, d.push, *d.service, *d.bytes_out, *d.bytes_in) for d in steps]
    own_work = [sum(d.delay + d.input + d.compute + d.push for d in own) for own in evidence.demands]
    rows = sum(demand.rows for demand in steps)
    positive = (*topology.cores, *topology.bandwidth, evidence.rows_per_second, rows, *own_work)
    if min(map(min, parts)) < 0 or not all(map(math.isfinite, itertools.chain(*parts))) or min(positive) <= 0:
        message = f"the telemetry of `{run.path}` cannot be true: its steps take no time, or less, or have no rows"
        raise DataError(message, "if no file was changed, please report this as a bug")


def _gathers_per_row(facts: Facts, batch_size: int) -> float:
    """How many weights are looked up per row: a key that several rows of a batch have is looked up once."""
    rows = min(batch_size, facts.rows)
    return facts.nonzeros_per_row if rows <= 1 else facts.keys_per_batch.get(rows, 0.0) / rows


def _steady(chunks: Sequence[Chunk]) -> list[Chunk]:
    """Chunks without each role's first one, in which memory is touched for the first time; all if there are few."""
    return [chunk for own in by_rank(chunks).values() for chunk in (own[1:] if len(own) > 2 else own)]


def _samples_of(chunks: Sequence[WorkerChunk], samples: Sequence[StepSample]) -> dict[int, list[StepSample]]:
    """Each worker's samples. Workers that take turns on a thread share one's samples: their chunks end together."""
    found = by_rank(samples)
    sampled_at = {chunk.time: chunk.rank for chunk in chunks if chunk.rank in found}
    ranks = {chunk.rank: chunk.rank if chunk.rank in found else sampled_at.get(chunk.time, -1) for chunk in chunks}
    return {rank: found[sampled] for rank, sampled in ranks.items() if sampled in found}


def _rate(chunks: Sequence[WorkerChunk]) -> float:
    """Rows per second of all workers together."""
    return sum(
        sum(chunk.rows for chunk in own) / max(1e-9, sum(chunk.seconds for chunk in own))
        for own in by_rank(chunks).values()
    )


def _phases(chunks: Sequence[WorkerChunk]) -> dict[str, float]:
    """Shares of all workers' time; `other` is what was not timed."""
    seconds = max(1e-9, sum(chunk.seconds for chunk in chunks))
    shares = {name: sum(getattr(chunk, name) for chunk in chunks) / seconds for name in PHASES}
    return shares | {"other": max(0.0, 1 - sum(shares.values()))}


def _demands(chunks: Sequence[WorkerChunk], samples: Sequence[StepSample], crowded: bool,
             shards: Sequence[Sequence[ShardChunk]], keyed: bool) -> list[Demand]:  # fmt: skip
    """A worker's sampled steps, scaled so that their means are those of the exact totals."""
    samples = [sample for sample in samples if len(sample.replies) == len(shards)]
    if not samples:
        raise DataError("no step of this run was recorded with all of its shards", "train for a few more seconds")
    samples = samples[int(len(samples) * WARM_UP_SHARE) :]
    steps = sum(chunk.steps for chunk in chunks)
    sampled = sum(sample.steps for sample in samples)
    scale = {}
    for name in ("input", "compute", "push", "rows"):
        exact = sum(getattr(chunk, name) for chunk in chunks) / steps
        # Every sample is drawn equally often, however many steps it covers.
        seen = statistics.fmean(getattr(sample, name) / sample.steps for sample in samples)
        scale[name] = exact / seen if seen > 0 else 1.0
    stretch = _stretch(samples) if crowded else 1.0
    # Time that sending to shards takes beyond its work is waiting for a link, which the simulator adds again.
    sends = bool(samples[0].replies)
    if sends:
        scale["push"] = min(1.0, scale["push"])
    processor = {
        name: statistics.fmean(getattr(sample, f"{name}_processor") / sample.steps for sample in samples) * scale[name]
        for name in ("input", "compute", "push")
    }
    push = processor["push"]
    # Receiving a reply is work too, but no phase shows it, because a worker mostly waits there. Without keys, workers
    # do not spin while they wait for replies, and may copy much.
    most = RECEIVE_PER_PUSH * push if keyed else math.inf
    receive = min(max(0.0, _work(chunks, "steps") - sum(processor.values())), most) if sends else 0.0
    service_scale = _service_scale(chunks, samples)
    served = [
        statistics.fmean(reply.service for reply in replies) * service_scale
        for replies in zip(*(sample.replies for sample in samples), strict=True)
    ]
    stretch_of = [
        mean / min(work, mean + SERVE_PER_PUSH * push) if work > 0 and mean > 0 else 1.0
        for mean, work in zip(served, (_work(own, "requests") for own in shards), strict=True)
    ]
    awake = _awake(chunks, samples, processor["compute"], crowded)
    # What idling costs a shard is not measured: as much as it costs a worker, if the shard idles.
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
                    for reply, stretched in zip(sample.replies, stretch_of, strict=True)
                ),
                bytes_out=tuple(float(reply.bytes_sent) for reply in sample.replies),
                bytes_in=tuple(float(reply.bytes_received) for reply in sample.replies),
                awake=awake,
                shard_awake=shard_awake,
            )
        )
    return _spread(found, sampled / len(samples))


def _spread(demands: list[Demand], steps: float) -> list[Demand]:
    """Demands that are means over several steps, as single steps: these vary more, by the root of their number."""
    if steps <= 1:
        return demands
    mean = statistics.fmean(demand.compute for demand in demands)
    if mean <= 0:
        return demands

    def single(compute: float) -> float:
        return min(3 * mean, max(mean / 3, mean + (compute - mean) * math.sqrt(steps)))

    spread = [demand._replace(compute=single(demand.compute)) for demand in demands]
    correction = mean / statistics.fmean(demand.compute for demand in spread)
    return [demand._replace(compute=demand.compute * correction) for demand in spread]


def _stretch(samples: Sequence[StepSample]) -> float:
    """How many times longer work takes than its processor time, because others use the core."""
    wall, processor = sum(s.compute for s in samples), sum(s.compute_processor for s in samples)
    return max(1.0, wall / processor) if processor > 0 else 1.0


def _work(chunks: Sequence[WorkerChunk] | Sequence[ShardChunk], counted: str) -> float:
    """Processor seconds per step or request, as `counted`, without spinning for frames; 0 if that is not known."""
    seconds = sum(chunk.processor - chunk.spun for chunk in chunks)
    count: int = sum(getattr(chunk, counted) for chunk in chunks)
    return max(0.0, seconds) / max(1, count)


def _awake(chunks: Sequence[WorkerChunk], samples: Sequence[StepSample], compute: float, crowded: bool) -> float:
    """The share of their time that steps would take without idling before them; 1 if most did not idle."""
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
