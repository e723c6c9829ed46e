"""Run folders with a bottleneck planted in their telemetry, by arithmetic alone.

Every role is on a machine of its own with four cores. What a step takes is said part by part, and how long it lasts
follows. At pace async, with two batches in flight: as long as what is slowest of a worker's own work, the shard's work
for all workers and the shard's link. At pace sync: as long as the slowest worker's own work and the round trip.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from paceline.config import to_toml
from paceline.data.datasets import open_dataset
from paceline.models.registry import find
from paceline.run_folder import RunFolder
from paceline.settings import RunConfig
from paceline.telemetry.ceilings import Ceilings, GpuCeiling
from paceline.telemetry.facts import Facts, GpuFacts, Traits, write_facts
from paceline.telemetry.gather_facts import count_keys, facts_of
from paceline.telemetry.records import (
    ConnectionProbe,
    GpuChunk,
    NodeProbe,
    Record,
    Reply,
    ShardChunk,
    StepSample,
    WorkerChunk,
)
from tests.reports.folders import result_of, write_records

ROWS = 100
SAMPLES = 80
SECONDS = 12
CORES = 4
LATENCY = 1e-4


class Step(NamedTuple):
    """Seconds and bytes of a step. `reading` is the processor's part of input, `delay` the rest."""

    delay: float = 0.0
    reading: float = 2e-4
    compute: float = 1e-3
    push: float = 1e-4
    service: float = 1e-4
    sent: int = 8_000
    received: int = 4_000

    @property
    def own(self) -> float:
        return self.delay + self.reading + self.compute + self.push


PLANTS: dict[str, Step] = {
    "input": Step(delay=8e-3),
    "worker-compute": Step(compute=8e-3),
    "network": Step(sent=800_000, received=400_000),
    "shard-compute": Step(service=4e-3),
    "straggler": Step(compute=4e-3),
}
# The shard needs as long for three workers' frames as each worker needs for its own work.
EVEN = Step(service=5e-4, reading=1e-4, compute=1.2e-3, push=1e-4)


def make_planted(path: Path, plant: str, *, seed: int = 0, num_workers: int = 3, unexplained: float = 0.0,
                 data: str = "data/nowhere", result: bool = False) -> RunFolder:  # fmt: skip
    """A run over Ray with one shard that something limits; a part of each step may be `unexplained` by all else."""
    sync = plant == "straggler"
    step, bandwidth = (EVEN if plant == "balanced" else PLANTS[plant]), 1e8 if plant == "network" else 1e10
    steps = [step._replace(compute=step.compute * (4 if sync and rank == 1 else 1)) for rank in range(num_workers)]
    trip = 2 * LATENCY + (step.sent + step.received) / bandwidth + step.service
    if sync:
        lasts = max(one.compute + one.push + max(one.delay + one.reading, trip) for one in steps)
    else:
        lasts = max(step.own, num_workers * step.service, num_workers * max(step.sent, step.received) / bandwidth)
    lasts *= 1 + unexplained
    config = RunConfig(
        data=data, engine="ray", workers=num_workers, shards=1, batch_size=ROWS, pace="sync" if sync else "async",
        run=str(path),
    )  # fmt: skip
    path.mkdir(parents=True)
    (path / "config.toml").write_bytes(to_toml(config))
    chance = random.Random(seed)
    nodes = [f"node-{rank}" for rank in range(num_workers)]
    write_records(path, [r for rank, one in enumerate(steps) for r in worker_chunks(rank, nodes[rank], one, lasts)])
    write_records(path, [r for rank, one in enumerate(steps) for r in step_samples(chance, rank, one, lasts, sync)])
    write_records(path, shard_chunks(num_workers * step.service / lasts, num_workers / lasts))
    rates = [(step.sent / lasts, step.received / lasts)] * num_workers
    rates.append((num_workers * step.received / lasts, num_workers * step.sent / lasts))
    write_records(path, [r for node, both in zip([*nodes, "shard"], rates, strict=True) for r in probes(node, *both)])
    write_records(path, connections(num_workers, step, lasts, bandwidth, full=plant == "network"))
    run = RunFolder(path)
    if result:
        last = {"rows": int(num_workers * SECONDS / lasts) * ROWS, "steps": int(SECONDS / lasts), "seconds": SECONDS}
        run.write_json("result.json", result_of(config, "done", last, 1.0))
    return run


def record_facts(run: RunFolder, data: Path, **changes: Any) -> Facts:
    """Record what training on `data` would have, with some settings changed."""
    config = msgspec.structs.replace(run.config, data=str(data), **changes)
    dataset = open_dataset(data)
    entry = find(config.model)
    model = entry.build(config, dataset, config.batch_size)
    table = model.layout.table
    facts = facts_of(entry, model.output.task.metrics, dataset, table)
    if table is not None:
        facts = msgspec.structs.replace(facts, keys_per_batch=count_keys(dataset, config))
    (run.path / "config.toml").write_bytes(to_toml(config))
    write_facts(run.path, facts)
    return facts


def ceilings(gathers: float) -> Ceilings:
    return Ceilings(
        measured="", processor="", cores=1, copy_bytes_per_second=1.0, copy_bytes_per_second_all_cores=1.0,
        table_bytes=1, gathers_per_second=gathers, gathers_per_second_all_cores=gathers, matrix_flop_per_second=1.0,
        folder="", disk_read_bytes_per_second=None, loopback_bytes_per_second=1.0, loopback_round_trip_seconds=1.0,
        left_out={},
    )  # fmt: skip


def worker_chunks(rank: int, node: str, step: Step, lasts: float) -> list[Record]:
    """One chunk per second."""
    num = round(1 / lasts)
    waited = lasts - step.own
    return [
        WorkerChunk(
            time=float(second), rank=rank, node=node, seconds=num * lasts,
            processor=num * (step.reading + step.compute + step.push), steps=num, rows=num * ROWS,
            input=num * (step.delay + step.reading), compute=num * step.compute, push=num * step.push,
            pull=num * waited, replies=num, queue=num * 1e-5, service=num * step.service,
            bytes_sent=num * step.sent, bytes_received=num * step.received,
        )
        for second in range(1, SECONDS + 1)
    ]  # fmt: skip


def step_samples(chance: random.Random, rank: int, step: Step, lasts: float, sync: bool) -> list[Record]:
    """Steps that vary by a tenth; what is not a worker's own work it waits for, at the gate or for the reply."""
    samples: list[Record] = []
    for number in range(1, SAMPLES + 1):
        spent = {name: getattr(step, name) * chance.uniform(0.9, 1.1) for name in ("reading", "compute", "push")}
        delay = step.delay * chance.uniform(0.9, 1.1)
        waited = max(0.0, lasts - delay - sum(spent.values()))
        samples.append(StepSample(
            time=number * lasts, rank=rank, step=number, seconds=lasts, rows=ROWS, input=delay + spent["reading"],
            compute=spent["compute"], push=spent["push"], pull=waited, input_processor=spent["reading"],
            compute_processor=spent["compute"], push_processor=spent["push"],
            replies=[Reply(1e-5, waited if sync else 0.0, step.service * chance.uniform(0.9, 1.1), step.sent,
                           step.received)],
        ))  # fmt: skip
    return samples


def shard_chunks(busy: float, requests: float) -> list[Record]:
    return [
        ShardChunk(time=float(second), rank=0, node="shard", seconds=1.0, processor=busy, requests=round(requests),
                   queue=1e-5 * requests, service=busy)
        for second in range(1, SECONDS + 1)
    ]  # fmt: skip


def probes(node: str, sent: float, received: float, pressure: float = 0.0) -> list[Record]:
    """A machine that nobody else uses."""
    return [
        NodeProbe(
            time=float(second), node=node, machine=f"machine of {node}", seconds=1.0, cores=[0.1] * CORES,
            memory_bytes=10**9, memory_total_bytes=4 * 10**9, network_sent_bytes_per_second=sent,
            network_received_bytes_per_second=received, pressure={"io_some": pressure},
        )
        for second in range(1, SECONDS + 1)
    ]  # fmt: skip


def connections(num_workers: int, step: Step, lasts: float, bandwidth: float, *, full: bool) -> list[Record]:
    """Both ends of each connection. Where links are `full`, all connections always have something on the way."""
    ends = [("worker", rank, "shard 0", step.sent / lasts) for rank in range(num_workers)]
    ends += [("shard", 0, f"worker {rank}", step.received / lasts) for rank in range(num_workers)]
    return [
        ConnectionProbe(
            time=float(second), role=role, rank=rank, peer=peer, seconds=1.0, delivered_bytes=round(sent),
            busy=1.0 if full else sent / bandwidth, receiver_limited=0.0, buffer_limited=0.0,
            round_trip_seconds=3 * LATENCY, least_round_trip_seconds=2 * LATENCY, delivery_bytes_per_second=bandwidth,
            retransmitted=0,
        )
        for second in range(1, SECONDS + 1)
        for role, rank, peer, sent in ends
    ]  # fmt: skip


def make_embedded(path: Path, *, pace: str | int = "async", ranks: tuple[tuple[int, ...], ...] = ((0,), (1,)),
                  cores: int = CORES, others: float = 0.0, compute: float = 1e-3, samples_of_steps: int = 1,
                  data: str = "data/nowhere") -> RunFolder:  # fmt: skip
    """A run of threads in one process, each of which takes its `ranks` in turn; `others` is what other programs use."""
    path.mkdir(parents=True)
    workers = sum(map(len, ranks))
    config = RunConfig(data=data, workers=workers, batch_size=ROWS, pace=pace, run=str(path))
    (path / "config.toml").write_bytes(to_toml(config))
    chunks: list[Record] = []
    samples: list[Record] = []
    for thread, own in enumerate(ranks):
        lasts = compute * len(own)
        num = round(1 / lasts)
        for second in range(1, SECONDS + 1):
            shared = 1 - 1 / len(own)
            chunks += [
                WorkerChunk(
                    time=second + 1e-6 * thread, rank=rank, node="here", seconds=num * lasts, processor=num * compute,
                    steps=num, rows=num * ROWS, compute=num * compute, wait=shared * num * lasts,
                )
                for rank in own
            ]  # fmt: skip
        samples += [
            StepSample(
                time=number * lasts, rank=own[0], step=number * steps, steps=steps, seconds=steps * lasts * weight,
                rows=steps * ROWS * len(own), compute=steps * lasts * weight, compute_processor=steps * lasts * weight,
            )
            for number in range(1, SAMPLES + 1)
            # Short pieces cost more per step, as at the end of a segment.
            for steps, weight in [(samples_of_steps, 1.0), (1, 1.0 if samples_of_steps == 1 else 3.0)]
        ]  # fmt: skip
    busy = (len(ranks) + others) / cores
    node = [
        NodeProbe(time=float(second), node="here", seconds=1.0, cores=[busy] * cores, memory_bytes=10**9,
                  memory_total_bytes=4 * 10**9)
        for second in range(1, SECONDS + 1)
    ]  # fmt: skip
    write_records(path, chunks)
    write_records(path, samples)
    write_records(path, list(node))
    return RunFolder(path)


GPU = GpuCeiling(name="a GPU", memory_bytes_per_second=1e9, bus_bytes_per_second=1e8)


def make_on_gpu(path: Path, *, kernels: float = 0.9, waiting: float = 0.1, copies: float = 0.0, resident: float = 1.0,
                bytes_per_row: float = 1_000.0, fewer_bytes: dict[str, float] | None = None, most_rows: int = 0,
                unexplained: float = 0.0) -> RunFolder:  # fmt: skip
    """A run of 100,000 sparse rows per second on a GPU, each of whose seconds had this much of everything."""
    run = make_embedded(path, ranks=((0,),))
    config = msgspec.structs.replace(run.config, device="cuda", resident=resident)
    (path / "config.toml").write_bytes(to_toml(config))
    gpu = GpuFacts(ceiling=GPU, streamed=copies > 0, bytes_per_row=bytes_per_row, fewer_bytes=fewer_bytes or {},
                   most_rows=most_rows)  # fmt: skip
    traits = Traits(input="rows", keyed=True, metrics=("loss",), compiled=True)
    write_facts(path, Facts(traits=traits, rows=10**6, keys=1_000, floats_per_key=2, gpu=gpu))
    rows, waited = round(100_000 * (1 - unexplained)), max(0.0, copies - kernels - waiting)
    write_records(path, [
        GpuChunk(time=float(second), rank=0, node="here", seconds=kernels + waiting + waited, rows=rows, launches=100,
                 kernels=kernels, input=waiting, bus=waited, copies=copies, copied_bytes=round(5e7 * copies))
        for second in range(1, SECONDS + 1)
    ])  # fmt: skip
    return RunFolder(path)
