"""Run folders made by hand, as training leaves them: whole, hostile, and half."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from paceline.config import to_toml
from paceline.run_folder import RunFolder
from paceline.settings import OptimizerConfig, RunConfig
from paceline.telemetry.records import FILES, LeftOut, NodeProbe, Record, Reply, StepSample, WorkerChunk

SECONDS = 30
SHARES = {"input": 0.08, "pull": 0.27, "compute": 0.35, "push": 0.16, "wait": 0.1}
DIAGNOSIS = {
    "bottleneck": "network",
    "sentence": "The network limits this run: with an infinitely fast one it would be 1.9 times faster.",
    "gain_if_removed": 1.9,
    "gain_interval": [1.7, 2.1],
    "next_bottleneck": "shard-compute",
    "phases": {**SHARES, "other": 0.04},
    "replay_error": 0.043,
    "evidence": ["43 % of a step is spent in pull and push", "1.1 GB/s leave node-1, of the 1.25 that it can send"],
    "recommendation": "Send half the bytes: --set wire.values=float16",
    "nodes": [],
}


def make_run(
    path: Path, *, pace: str = "async", workers: int = 4, nodes: tuple[str, ...] = ("node-1", "node-2", "node-3"),
    status: str = "done", rate: float = 0.05, speed: float = 1.0, test_rows: bool = True, telemetry: bool = True,
    data: str = "data/clicks",
) -> RunFolder:  # fmt: skip
    """A finished run with an evaluation every two seconds and everything that a cluster records."""
    path.mkdir(parents=True)
    config = RunConfig(
        data=data, pace=pace, workers=workers, shards=2, engine="ray", run=str(path), batch_size=1_000,
        optimizer=OptimizerConfig(learning_rate=rate),
    )  # fmt: skip
    (path / "config.toml").write_bytes(to_toml(config))
    run = RunFolder(path)
    rng = np.random.default_rng(0)
    for line in evaluations(rng, speed, test_rows):
        run.add_metrics(line)
    last = run.metrics[-1]
    run.write_json("result.json", result_of(config, status, last, speed))
    if telemetry:
        write_records(path, worker_chunks(rng, workers, nodes, speed))
        write_records(path, step_samples(rng, workers))
        write_records(path, node_probes(rng, nodes))
        write_records(path, [LeftOut(time=0.0, node=nodes[-1], name="pressure", reason="no /proc/pressure")])
    return run


def write_records(run: Path, records: list[Record]) -> None:
    name = FILES[type(records[0])]
    (run / "telemetry").mkdir(exist_ok=True)
    (run / "telemetry" / f"{name}.jsonl").write_bytes(b"".join(msgspec.json.encode(r) + b"\n" for r in records))


def evaluations(rng: np.random.Generator, speed: float, test_rows: bool) -> list[dict[str, Any]]:
    lines = []
    for second in range(2, SECONDS + 1, 2):
        rows = int(second * 400_000 * speed)
        loss = 0.44 + 0.2 * math.exp(-rows / 3e6) + 0.001 * rng.normal()
        line: dict[str, Any] = {
            "rows": rows, "steps": rows // 4_000, "epoch": rows / 1e7, "seconds": float(second), "train_loss": loss,
        }  # fmt: skip
        if test_rows:
            line |= {"test_loss": loss + 0.01, "test_error": loss / 2, "test_auc": 1.06 - loss / 2}
        lines.append(line)
    return lines


def result_of(config: RunConfig, status: str, last: dict[str, Any], speed: float) -> dict[str, Any]:
    test = {name: last[f"test_{name}"] for name in ("loss", "error", "auc") if f"test_{name}" in last}
    return {
        "status": status, "model": "logistic", "pace": config.pace, "engine": "ray", "device": "cpu",
        "workers": config.workers, "shards": 2, "batch_size": config.batch_size, "optimizer": "adagrad",
        "rows": last["rows"], "steps": last["steps"], "startup_seconds": 2.5, "train_seconds": last["seconds"],
        "rows_per_second": 400_000 * speed, "test": test, "max_staleness": 7,
        "wire": {"bytes_sent": 10**9, "bytes_received": 10**9, "bytes_per_row": 166.7, "refused": 0},
        "restarts": {"workers": 1, "shards": 0}, "recoveries": [{"role": "worker", "rank": 1, "seconds": 1.5}],
        "peak_memory_bytes": 3 * 10**9, "model_sha256": "ab" * 32,
    }  # fmt: skip


def worker_chunks(rng: np.random.Generator, workers: int, nodes: tuple[str, ...], speed: float) -> list[Record]:
    chunks: list[Record] = []
    for second in range(1, SECONDS + 1):
        for rank in range(workers):
            steps = int(100 * speed * (1 - 0.06 * (rank % 8)) + rng.normal(0, 4))
            tilt = {"wait": 0.02 * (rank % 8), "compute": -0.02 * (rank % 8)}
            spent = {name: share + tilt.get(name, 0.0) for name, share in SHARES.items()}
            chunks.append(WorkerChunk(
                time=float(second), rank=rank, node=nodes[rank % len(nodes)], seconds=1.0, processor=0.6, steps=steps,
                rows=steps * 1_000, replies=2 * steps, bytes_sent=steps * 60_000, bytes_received=steps * 60_000,
                **spent,
            ))  # fmt: skip
    return chunks


def step_samples(rng: np.random.Generator, workers: int) -> list[Record]:
    samples: list[Record] = []
    for second in range(1, SECONDS + 1):
        for rank in range(workers):
            seconds = float(0.01 * (1 + 0.4 * rng.random()))
            sample = StepSample(
                time=second + 0.1 * rank, rank=rank, step=100 * second + rank, seconds=seconds, rows=1_000,
                replies=[Reply(1e-4, 0.0, 4e-4, 60_000, 60_000), Reply(2e-4, 1e-3, 5e-4, 58_000, 58_000)],
            )  # fmt: skip
            for name, share in SHARES.items():
                setattr(sample, name, share * seconds)
            samples.append(sample)
    return samples


def node_probes(rng: np.random.Generator, nodes: tuple[str, ...]) -> list[Record]:
    return [
        NodeProbe(
            time=float(second), node=node, seconds=1.0,
            cores=np.clip(rng.normal(0.5 + 0.1 * place, 0.1, 8), 0, 1).tolist(),
            memory_bytes=int(4e9 + 1e8 * second + 5e8 * place), memory_total_bytes=32 * 10**9,
            network_sent_bytes_per_second=float(1e9 + 1e8 * rng.normal()), network_received_bytes_per_second=8e8,
            disk_read_bytes_per_second=float(5e7 * rng.random()) if place else None, pressure={"cpu_some": 0.1},
        )
        for second in range(1, SECONDS + 1)
        for place, node in enumerate(nodes)
    ]  # fmt: skip


def make_half_run(path: Path) -> RunFolder:
    """A run that was killed before its first evaluation: a configuration, and half a record."""
    path.mkdir(parents=True)
    (path / "config.toml").write_bytes(to_toml(RunConfig(data="data/clicks")))
    (path / "telemetry").mkdir()
    (path / "telemetry" / "workers.jsonl").write_text('{"type":"WorkerChunk","time":1.0,"ra')
    return RunFolder(path)
