"""The story of one run, on one page: from a configuration to a run folder with a trained model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from paceline.config import RunConfig
from paceline.data.blocks import Dataset
from paceline.engines.local import LocalEngine
from paceline.errors import InterruptedRunError, PacelineError, UsageError
from paceline.files import locked, refuse_existing
from paceline.machine import num_cores
from paceline.models.logistic import Quality
from paceline.run_folder import Run
from paceline.training.checkpoint import load_checkpoint
from paceline.training.coordinator import Coordinator, Status, Watch
from paceline.training.model_files import save_model
from paceline.training.pace import Pace


def watch_nothing(_status: Status) -> None:
    """For runs that nobody watches."""


def train(config: RunConfig, watch: Watch = watch_nothing, began: float | None = None) -> Run:
    """Train as configured, in a new run folder. `began` is when the user's command did, in seconds since 1970."""
    began = began or time.time()
    dataset = Dataset(config.data)
    if config.run:
        refuse_existing(Path(config.run))
    config = msgspec.structs.replace(config, data=str(dataset.path.resolve()))
    engine = _start_engine(config)
    try:
        coordinator = Coordinator(config, dataset, engine, watch)
        coordinator.make_ready()
        return _carry_out(Run.create(config), coordinator, began)
    finally:
        engine.close()


def resume(
    path: Path | str, watch: Watch = watch_nothing, began: float | None = None, notice: Callable[[str], None] = print
) -> Run:
    """Go on with a run from its newest checkpoint; `notice` hears what the user should know."""
    began = began or time.time()
    run = Run(path)
    if run.result.get("status") == "done":
        raise UsageError(f"`{path}` is finished", "train a new run, with more --epochs if it should learn on")
    config = run.config
    checkpoint = load_checkpoint(run.path / "checkpoints")
    for damage in checkpoint.damaged:
        notice(f"{damage}; going on from the one before, after {checkpoint.progress.position:,} rows")
    engine = _start_engine(config)
    try:
        coordinator = Coordinator(config, Dataset(config.data), engine, watch)
        coordinator.restore(checkpoint)
        coordinator.make_ready()
        run.cut_metrics(checkpoint.progress.position)
        coordinator.quality = _last_quality(run)
        return _carry_out(run, coordinator, began)
    finally:
        engine.close()


def _last_quality(run: Run) -> Quality | None:
    """What the last evaluation of a run found; None if there was none."""
    last = run.metrics[-1] if run.metrics else {}
    if "test_loss" not in last:
        return None
    found = [last[f"test_{name}"] for name in Quality._fields]
    return Quality(*(math.nan if value is None else value for value in found))


def _start_engine(config: RunConfig) -> LocalEngine:
    """Threads for the workers: one each, but in sync no more than there are cores, where it makes no difference."""
    in_step = Pace.of(config.pace).fold == "mean"
    return LocalEngine(config.workers, min(config.workers, num_cores()) if in_step else config.workers)


def _carry_out(run: Run, coordinator: Coordinator, began: float) -> Run:
    """Train, keep the model, and write down how it went, however it ends."""
    try:
        with locked(run.path / "config.toml"), coordinator.interrupts():
            run.write_json("roles.json", coordinator.engine.roles())
            coordinator.train(run)
            parameters = coordinator.parameters()
            sha256 = save_model(run.path / "model", parameters, coordinator.dataset.manifest.source)
            coordinator.measure_memory()
            run.write_json("result.json", _result(coordinator, "done", began) | {"model_sha256": sha256})
    except InterruptedRunError:
        run.write_json("result.json", _result(coordinator, "interrupted", began))
        raise
    except Exception as error:
        # A full disk may refuse these too; what went wrong first is what counts.
        with suppress(PacelineError):
            run.write_json("result.json", _result(coordinator, "failed", began) | {"error": str(error)})
        raise
    finally:
        with suppress(PacelineError):
            run.write_json("roles.json", [])
    return run


def _result(coordinator: Coordinator, status: str, began: float) -> dict[str, Any]:
    """`result.json`, but for the model's checksum."""
    config, at = coordinator.config, coordinator.progress
    quality = coordinator.quality._asdict() if coordinator.quality else {}
    return {
        "status": status,
        "model": config.model,
        "pace": config.pace,
        "engine": config.engine,
        "device": "cpu",
        "workers": config.workers,
        "shards": config.shards,
        "batch_size": config.batch_size,
        "optimizer": config.optimizer.name,
        "rows": at.position,
        "steps": at.clock,
        "startup_seconds": max(0.0, coordinator.began - began),
        "train_seconds": at.train_seconds,
        "rows_per_second": at.position / at.train_seconds if at.train_seconds else 0.0,
        "test": {name: value if value == value else None for name, value in quality.items()},
        "wire": {"bytes_sent": 0, "bytes_received": 0, "bytes_per_row": 0.0},
        "max_staleness": at.largest_lead,
        "restarts": {"workers": 0, "shards": 0},
        "peak_memory_bytes": coordinator.peak_memory_bytes,
    }
