"""The story of one run, on one page: from a configuration to a run folder with a trained model."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.config import RunConfig, check
from paceline.data.datasets import AnyDataset, open_for
from paceline.data.images.dataset import ImageDataset
from paceline.engines import StartingEngine
from paceline.errors import DataError, InterruptedRunError, PacelineError, UsageError
from paceline.files import locked, refuse_existing
from paceline.reports.tensorboard import on_board
from paceline.run_folder import Run
from paceline.training.checkpoint import load_checkpoint
from paceline.training.coordinator import Coordinator, Notice, Status, Watch
from paceline.training.crew import Crew
from paceline.training.dense_files import save_dense_model
from paceline.training.embedded.crew import SparseCrew
from paceline.training.embedded.dense import DenseCrew
from paceline.training.model_files import save_model

SHORTEST_EXPLAINED_SECONDS = 2.0


def watch_nothing(_status: Status) -> None:
    """For runs that nobody watches."""


def train(config: RunConfig, starting: StartingEngine, watch: Watch = watch_nothing, began: float | None = None,
          notice: Notice = print) -> Run:  # fmt: skip
    """Train as configured, in a new run folder. `began` is when the user's command did, in seconds since 1970.

    `starting` is the engine for this configuration; `notice` hears, in lines, what went wrong on the way.
    """
    began = began or time.time()
    crew: Crew | None = None
    try:
        dataset = open_for(config)
        if config.run:
            refuse_existing(Path(config.run))
        config = msgspec.structs.replace(config, data=dataset.folder.name)
        crew = _make_crew(config, dataset, starting)
        coordinator = Coordinator(config, dataset, crew, watch, notice)
        coordinator.make_ready()
        run = _carry_out(Run.create(config), coordinator, began)
    finally:
        if crew is not None:
            crew.close()
        starting.close()
    return _explained(run, notice)


def resume(path: Path | str, watch: Watch = watch_nothing, began: float | None = None, notice: Notice = print,
           address: str | None = None, data: str | None = None) -> Run:  # fmt: skip
    """Go on with a run from its newest checkpoint; `notice` hears what the user should know.

    `address` is that of a cluster, and `data` the place of the same data, where it is another one now.
    """
    began = began or time.time()
    run = Run(path)
    config = run.config
    if run.result.get("status") == "done":
        raise UsageError(f"`{path}` is finished", "train a new run, with more --epochs if it should learn on")
    if address is not None:
        config = check(msgspec.structs.replace(config, address=address))
    if data is not None:
        config = msgspec.structs.replace(config, data=data)
    checkpoint = load_checkpoint(run.path / "checkpoints")
    for damage in checkpoint.damaged:
        notice(f"{damage}; going on from the one before, after {checkpoint.progress.position:,} rows")
    dataset = open_for(config)
    starting = StartingEngine(config)
    crew: Crew | None = None
    try:
        crew = _make_crew(config, dataset, starting)
        coordinator = Coordinator(config, dataset, crew, watch, notice)
        coordinator.restore(checkpoint)
        # Its states are the crew's now: nobody needs a second copy.
        tested = checkpoint.progress.tested
        del checkpoint
        coordinator.make_ready()
        run.cut_metrics(tested)
        coordinator.remember_quality(run)
        coordinator.account_before = run.result
        run = _carry_out(run, coordinator, began)
    finally:
        if crew is not None:
            crew.close()
        starting.close()
    return _explained(run, notice)


def _explained(run: Run, notice: Notice) -> Run:
    """A run with the reason why it was not faster, where it was long enough to tell."""
    try:
        if run.result["train_seconds"] >= SHORTEST_EXPLAINED_SECONDS:
            run.diagnose()
    except DataError:
        pass
    except Exception as error:  # noqa: BLE001 (the run is done, and stays so)
        notice(f"what limited this run could not be found out: {type(error).__name__}: {error}")
    return run


def _make_crew(config: RunConfig, dataset: AnyDataset, starting: StartingEngine) -> Crew:
    """Those who train: threads of this process, or processes of a cluster."""
    if config.engine == "local":
        return DenseCrew(config, dataset) if isinstance(dataset, ImageDataset) else SparseCrew(config, dataset)
    from paceline.training.cluster.crew import ClusterCrew

    return ClusterCrew(config, dataset, starting)


def _save(path: Path, parameters: NDArray[np.float32], coordinator: Coordinator) -> str:
    """Keep the trained model; the checksum of its parameters."""
    dataset, model = coordinator.dataset, coordinator.crew.model
    if isinstance(dataset, ImageDataset) and model is not None:
        return save_dense_model(path, parameters, model, coordinator.config, dataset)
    return save_model(path, parameters, dataset.manifest.source)


def _carry_out(run: Run, coordinator: Coordinator, began: float) -> Run:
    """Train, keep the model, and write down how it went, however it ends."""
    # What another process is at work on is not ours to write to.
    with locked(run.path / "config.toml"):
        coordinator.evaluated = on_board(run)
        try:
            with coordinator.interrupts():
                parameters = coordinator.train(run)
                sha256 = _save(run.path / "model", parameters, coordinator)
                coordinator.measure_memory()
                run.write_json("result.json", _result(coordinator, "done", began) | {"model_sha256": sha256})
        except InterruptedRunError:
            run.write_json("result.json", _result(coordinator, "interrupted", began))
            raise
        except Exception as error:
            # A full disk may refuse these too; what went wrong first is what counts.
            with suppress(PacelineError):
                what = {"error": str(error), "error_kind": type(error).__name__}
                run.write_json("result.json", _result(coordinator, "failed", began) | what)
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
        "device": config.device,
        "workers": config.workers,
        "shards": config.shards,
        "batch_size": config.batch_size,
        "optimizer": config.optimizer.name,
        "data_fingerprint": coordinator.dataset.fingerprint,
        "rows": at.position,
        "steps": at.clock,
        "startup_seconds": max(0.0, coordinator.began - began),
        "train_seconds": at.train_seconds,
        "rows_per_second": at.position / at.train_seconds if at.train_seconds else 0.0,
        "test": {name: value if value == value else None for name, value in quality.items()},
        "max_staleness": at.largest_lead,
    } | coordinator.account()
