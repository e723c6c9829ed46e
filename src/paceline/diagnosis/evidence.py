"""What did a run record, in the terms of the simulator?"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from paceline.diagnosis.demands import demands_of, in_step, taking_turns
from paceline.diagnosis.gpu import GpuUse, is_possible
from paceline.diagnosis.simulator import SPIN_SECONDS, Demand, PaceRules, Topology
from paceline.diagnosis.steady import Steady, measured_rate, steady_part
from paceline.diagnosis.topology import TAKEN, ConnectionUse, NodeUse, by_rank, connection_use, node_use, topology_of
from paceline.engines import ENGINES
from paceline.errors import DataError
from paceline.run_folder import RunFolder
from paceline.settings import RunConfig
from paceline.telemetry.facts import Facts
from paceline.telemetry.meter import PHASES
from paceline.telemetry.recorder import Telemetry
from paceline.telemetry.records import ConnectionProbe, GpuChunk, NodeProbe, ShardChunk, StepSample, WorkerChunk
from paceline.training.pace import Pace

# The longest spins, as multiples of the mean one.
SPIN_VARIES = 1.5
# Roles that use this share of the cores have to wait for one.
NEARLY_ALL = 0.7


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
    steady: Steady
    company: float
    """How many times longer a step computes while all cores of the machine are busy; 1 if that is not known."""
    taken_cores: float
    """Cores that other programs used on the machine where they used most, if the run needed them; otherwise 0."""

    gpu: GpuUse | None = None
    """What the run did with a GPU that trained on sparse rows; such a run is not simulated."""

    @property
    def is_simulated(self) -> bool:
        """Whether the simulator can replay such a run. It does not know allreduce and GPUs that train on rows."""
        return self.gpu is None and self.config.exchange != "allreduce"


def gather_evidence(run: RunFolder) -> Evidence:
    """Read a run's telemetry. `DataError` if there is too little of it."""
    telemetry, config, facts = Telemetry(run.path), run.config, run.facts
    probes, samples = telemetry.read(NodeProbe), telemetry.read(StepSample)
    steady = steady_part(telemetry.read(WorkerChunk), probes, facts.rows)
    chunks, samples = steady.chunks, steady.samples(samples)
    gpu = None if facts.gpu is None else GpuUse(facts.gpu, steady.of(telemetry.read(GpuChunk)))
    if not chunks or not samples or (gpu is not None and not gpu.chunks):
        is_there = (run.path / "telemetry").is_dir()
        hint = "train for at least a few seconds" if is_there else "its folder `telemetry` is missing"
        raise DataError(f"`{run.path}` has no telemetry that could explain it", hint)
    samples_of = _samples_of(chunks, samples)
    ranks = sorted(samples_of)
    shards = telemetry.read(ShardChunk)
    connections = telemetry.read(ConnectionProbe)
    topology = topology_of(config, ranks, chunks, shards, probes, connections, facts.ceilings)
    if facts.cores and not ENGINES[config.engine].has_processes:
        topology = topology._replace(cores=tuple(min(cores, facts.cores) for cores in topology.cores))
    threads = len({sample.rank for sample in samples})
    if not ENGINES[config.engine].has_processes and threads < len(ranks):
        # Workers that take turns use no more cores than there are threads.
        topology = topology._replace(cores=tuple(min(cores, threads) for cores in topology.cores))
    chunks_of, shard_chunks_of = by_rank(chunks), by_rank(steady.of(shards))
    crowded = _crowded(topology, [chunks_of[rank] for rank in ranks], shard_chunks_of)
    served = [shard_chunks_of.get(shard, []) for shard in range(len(topology.shards))]
    topology = topology._replace(spin=_spin(chunks, steady.of(shards)), wake=_wake(facts))
    byte_seconds = _byte_seconds(facts)
    demands = [
        demands_of(chunks_of[rank], samples_of[rank], crowded[node], served, facts.traits.keyed, byte_seconds)
        for rank, node in zip(ranks, topology.workers, strict=True)
    ]
    pace, speed = Pace.of(config.pace), measured_rate(chunks)
    if not topology.shards and pace.staleness == 0 and len(ranks) > 1 and not any(crowded):
        lasts = sum(chunk.seconds for chunk in chunks) / sum(chunk.steps for chunk in chunks)
        demands = in_step(demands, lasts)
    rules = PaceRules(pace.staleness, pace.in_flight(facts.traits.keyed))
    if topology.shards and any(crowded):
        topology, demands = taking_turns(topology, demands, rules, _spun_per_step(chunks, shard_chunks_of))
    evidence = Evidence(
        config=config,
        facts=facts,
        demands=demands,
        topology=topology,
        rules=rules,
        rows_per_second=speed,
        phases=_phases(chunks) if gpu is None or not is_possible(gpu) else gpu.shares,
        nodes=node_use(probes),
        connections=connection_use(connections, chunks),
        gathers_per_second=speed * _gathers_per_row(facts, config.batch_size),
        steady=steady,
        company=_company(chunks),
        taken_cores=_taken_cores(topology, probes),
        gpu=gpu,
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
    if min(map(min, parts)) < 0 or not all(map(math.isfinite, itertools.chain(*parts))) or min(positive) <= 0 or (
        evidence.gpu is not None and not is_possible(evidence.gpu)
    ):  # fmt: skip
        message = f"the telemetry of `{run.path}` cannot be true: its steps take no time, or less, or have no rows"
        raise DataError(message, "if no file was changed, please report this as a bug")


def _gathers_per_row(facts: Facts, batch_size: int) -> float:
    """How many weights are looked up per row: a key that several rows of a batch have is looked up once."""
    rows = min(batch_size, facts.rows)
    return facts.nonzeros_per_row if rows <= 1 else facts.keys_per_batch.get(rows, 0.0) / rows


def _crowded(topology: Topology, workers: Sequence[Sequence[WorkerChunk]],
             shards: Mapping[int, Sequence[ShardChunk]]) -> list[bool]:  # fmt: skip
    """For each node, whether roles on its machine waited for cores: they are more, and used nearly all of them."""
    roles = [0] * len(topology.cores)
    used = [0.0] * len(topology.cores)
    own: Sequence[Sequence[WorkerChunk] | Sequence[ShardChunk]]
    own = [*workers, *(shards.get(shard, []) for shard in range(len(topology.shards)))]
    for node, chunks in zip((*topology.workers, *topology.shards), own, strict=True):
        roles[topology.machines[node]] += 1
        seconds = sum(chunk.seconds for chunk in chunks)
        used[topology.machines[node]] += sum(chunk.processor for chunk in chunks) / seconds if seconds > 0 else 1.0
    full = [
        count > cores and share >= NEARLY_ALL * cores
        for count, share, cores in zip(roles, used, topology.cores, strict=True)
    ]
    return [full[machine] for machine in topology.machines]


def _byte_seconds(facts: Facts) -> float:
    """What a byte takes each side of a connection, as `doctor` measured it on the machine that started the run."""
    return 1 / facts.ceilings.loopback_bytes_per_second if facts.ceilings else 0.0


def _wake(facts: Facts) -> float:
    """How long a role that sleeps takes to wake up: two of them do during a round trip."""
    return facts.ceilings.loopback_round_trip_seconds / 2 if facts.ceilings else 0.0


def _spun_per_step(chunks: Sequence[WorkerChunk], shards: Mapping[int, Sequence[ShardChunk]]) -> float:
    """Processor seconds that a worker and all shards spent on spinning, per step of the worker."""
    by_shards = sum(sum(c.spun for c in own) / max(1, sum(c.requests for c in own)) for own in shards.values())
    return sum(chunk.spun for chunk in chunks) / sum(chunk.steps for chunk in chunks) + by_shards


def _spin(chunks: Sequence[WorkerChunk], shards: Sequence[ShardChunk]) -> float:
    """How long roles spin while they wait: as long as they may, unless they were recorded to spin less."""
    spun = [sum(chunk.spun for chunk in kind) for kind in (chunks, shards)]
    waits = sum(chunk.steps for chunk in chunks), sum(chunk.requests for chunk in shards)
    seen = max(seconds / max(1, count) for seconds, count in zip(spun, waits, strict=True))
    return min(SPIN_SECONDS, SPIN_VARIES * seen) if seen > 0 else SPIN_SECONDS


def _company(chunks: Sequence[WorkerChunk]) -> float:
    alone, together = (statistics.median(getattr(chunk, f"compute_{name}") for chunk in chunks)
                       for name in ("alone", "in_company"))  # fmt: skip
    return max(1.0, together / alone) if alone > 0 else 1.0


def _taken_cores(topology: Topology, probes: Sequence[NodeProbe]) -> float:
    """Cores that others used on a machine that had too few left for its roles."""
    total = max((len(probe.cores) for probe in probes), default=0)
    roles = [topology.machines[node] for node in (*topology.workers, *topology.shards)]
    taken = [total - free for machine, free in enumerate(topology.cores) if roles.count(machine) > free]
    return max((cores for cores in taken if cores >= TAKEN), default=0.0)


def _samples_of(chunks: Sequence[WorkerChunk], samples: Sequence[StepSample]) -> dict[int, list[StepSample]]:
    """Each worker's samples. Workers that take turns on a thread share one's samples: their chunks end together."""
    found = by_rank(samples)
    sampled_at = {chunk.time: chunk.rank for chunk in chunks if chunk.rank in found}
    ranks = {chunk.rank: chunk.rank if chunk.rank in found else sampled_at.get(chunk.time, -1) for chunk in chunks}
    return {rank: found[sampled] for rank, sampled in ranks.items() if sampled in found}


def _phases(chunks: Sequence[WorkerChunk]) -> dict[str, float]:
    """Shares of all workers' time; `other` is what was not timed."""
    seconds = max(1e-9, sum(chunk.seconds for chunk in chunks))
    shares = {name: sum(getattr(chunk, name) for chunk in chunks) / seconds for name in PHASES}
    return shares | {"other": max(0.0, 1 - sum(shares.values()))}
