"""The story of one run, on one page: from a configuration to a run folder with a trained model."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from paceline.config import check
from paceline.data.datasets import AnyDataset
from paceline.engines import ENGINES, PendingEngine
from paceline.errors import DataError, InterruptedRunError, PacelineError, UsageError, in_short, nothing_written
from paceline.exports.tracking import Tracking
from paceline.files import locked, refuse_existing, refuse_planted
from paceline.models.inputs import open_for
from paceline.models.registry import check_code, find, resume_command
from paceline.reports.tensorboard import on_board
from paceline.run_folder import RunFolder
from paceline.settings import RunConfig
from paceline.telemetry.gather_facts import when_and_where
from paceline.training.backend import Backend
from paceline.training.best import as_json
from paceline.training.checkpoint import has_checkpoint, load_checkpoint
from paceline.training.cluster.placement import engine_for
from paceline.training.coordinator import Coordinator, Notice, Status, Watch
from paceline.training.interrupts import on_interrupt, raise_early_interrupt
from paceline.training.start import Trained

SHORTEST_EXPLAINED_SECONDS = 2.0
# The settings that `result.json` repeats.
RESULT_SETTINGS = ("model", "pace", "engine", "device", "workers", "shards", "batch_size")


def watch_nothing(_status: Status) -> None:
    """Ignore the status."""


def train(config: RunConfig, engine: PendingEngine, watch: Watch = watch_nothing, began: float | None = None,
          notice: Notice = print) -> RunFolder:  # fmt: skip
    """Train as configured, in a new run folder. `began` is when the user's command began, in seconds since 1970.

    `engine` is the one for this configuration; `notice` is called with what the user should know.
    """
    began = began or time.time()
    dataset = open_for(config)
    if config.run:
        refuse_existing(Path(config.run), "choose another name, or remove it first")
    loss = find(config.model).loss_for(config.loss.name, dataset.labels.kind)
    loss_config = msgspec.structs.replace(config.loss, name=loss)
    config = msgspec.structs.replace(config, data=dataset.folder.name, loss=loss_config)
    tracking = Tracking(config.track, notice)
    with nothing_written():
        backend = _make_backend(config, dataset, engine)
    with tracking:
        with closing(backend):
            with nothing_written():
                coordinator = Coordinator(config, dataset, backend, watch, notice)
                coordinator.begin()
                coordinator.make_ready()
                raise_early_interrupt()
            run = RunFolder.create(config)
            tracking.begin(run)
            # Keeps out other processes that would write to the same folder.
            with locked(run.path / "config.toml"):
                _carry_out(run, coordinator, began, tracking)
        return _explained(run, notice)


def resume(path: Path | str, watch: Watch = watch_nothing, began: float | None = None, notice: Notice = print,
           address: str | None = None, data: str | None = None, model: str = "") -> RunFolder:  # fmt: skip
    """Continue a run from its newest checkpoint; `notice` is called with what the user should know.

    `address` is that of a cluster, and `data` the folder of the same data, if they have changed. `model` must name the
    code of a user's own model: it is imported and run.
    """
    began = began or time.time()
    run = RunFolder(path)
    # Before anything is read: another process may be training in this folder.
    with locked(run.path / "config.toml", f"`{run.path}` is still training"):
        refuse_planted(run.path)
        config = run.config
        check_code(path, config.model, model, f"`{resume_command(path, config.model)}`")
        config = check(config)
        if run.result.get("status") == "done":
            raise UsageError(f"`{path}` is finished", "to train for longer, start a new run with more --epochs")
        if address is not None:
            config = check(msgspec.structs.replace(config, address=address))
        if data is not None:
            config = msgspec.structs.replace(config, data=data)
        checkpoint = load_checkpoint(run.path / "checkpoints")
        dataset = open_for(config)
        with (
            Tracking(config.track, notice) as tracking, engine_for(config) as engine,
            closing(_make_backend(config, dataset, engine)) as backend,
        ):  # fmt: skip
            coordinator = Coordinator(config, dataset, backend, watch, notice)
            coordinator.restore(checkpoint)
            # The backend has its states now: a second copy would only take memory.
            tested = checkpoint.progress.tested
            del checkpoint
            coordinator.make_ready()
            run.cut_metrics(tested)
            coordinator.remember_quality(run)
            coordinator.account_before = run.result
            tracking.begin(run)
            _carry_out(run, coordinator, began, tracking)
        return _explained(run, notice)


def _explained(run: RunFolder, notice: Notice) -> RunFolder:
    """A run with the reason why it was not faster, if it was long enough to tell."""
    try:
        if run.result["train_seconds"] >= SHORTEST_EXPLAINED_SECONDS:
            # Not at the top: it would make the start of a run slower.
            from paceline.diagnosis.explain import write_diagnosis

            write_diagnosis(run)
    except DataError:
        pass
    except PacelineError as error:
        notice("; ".join(filter(None, (f"this run could not be diagnosed: {error.message}", error.hint))))
    except Exception as error:  # noqa: BLE001 (the run is done, and stays so)
        notice(f"this run could not be diagnosed: {in_short(error)}")
    return run


def _make_backend(config: RunConfig, dataset: AnyDataset, engine: PendingEngine) -> Backend:
    """What trains: threads of this process, or processes of a cluster."""
    if not ENGINES[config.engine].has_processes:
        from paceline.training.embedded.backend import EmbeddedBackend

        return EmbeddedBackend(config, dataset, find(config.model))
    from paceline.training.cluster.backend import ClusterBackend

    return ClusterBackend(config, dataset, find(config.model), engine)


def _carry_out(run: RunFolder, coordinator: Coordinator, began: float, tracking: Tracking) -> None:
    """Train, save the model, and write the result, however the run ends."""
    board = on_board(run)

    def evaluated(line: dict[str, Any]) -> None:
        tracking.evaluated(line)
        board(line)

    coordinator.evaluated = evaluated
    try:
        with on_interrupt(coordinator.interrupt):
            trained = coordinator.train(run)
            with _resumable(run):
                kept = _keep_model(run, coordinator, trained)
            coordinator.measure_memory()
            run.write_json("result.json", _result(coordinator, "done", began) | kept)
    except InterruptedRunError:
        run.write_json("result.json", _result(coordinator, "interrupted", began))
        raise
    except Exception as error:
        # A full disk may refuse this file too. The first error is the one to report.
        with suppress(PacelineError):
            what = {"error": str(error), "error_kind": type(error).__name__}
            run.write_json("result.json", _result(coordinator, "failed", began) | what)
        raise
    finally:
        with suppress(PacelineError):
            run.write_json("roles.json", [])


def _keep_model(run: RunFolder, coordinator: Coordinator, last: Trained | None) -> dict[str, Any]:
    """Save the model, or if there are validation rows the best one. What `result.json` says about it."""
    best = coordinator.best
    if best is None or best.found is None:
        assert last is not None
        return {"model_sha256": coordinator.save(last, run.path / "model")}
    best.becomes_the_model()
    found = best.found
    if found.rows < coordinator.progress.position:
        coordinator.notice(f"kept the model after {found.rows:,} rows: it has the lowest loss on the validation rows")
    kept = {"test": found.test} if found.test else {}
    return kept | {"validation": found.validation, "best_rows": found.rows, "model_sha256": found.model_sha256}


@contextmanager
def _resumable(run: RunFolder) -> Iterator[None]:
    """Add to the hint of a `UsageError` (a full disk, say) how to continue the run."""
    try:
        yield
    except UsageError as error:
        resume = f"`{resume_command(run.path, run.config.model)}` continues from its last checkpoint"
        then = resume if has_checkpoint(run.path / "checkpoints") else "train again"
        raise type(error)(error.message, f"{error.hint}, then {then}") from None


def _result(coordinator: Coordinator, status: str, began: float) -> dict[str, Any]:
    """`result.json` without the model's checksum."""
    config, at = coordinator.config, coordinator.progress
    quality, training, diverged = coordinator.quality or {}, coordinator.training, coordinator.diverged
    return {
        "status": status,
        **{name: getattr(config, name) for name in RESULT_SETTINGS},
        "loss": find(config.model).loss_for(config.loss.name, coordinator.dataset.labels.kind),
        "optimizer": config.optimizer.name,
        "data_fingerprint": coordinator.dataset.fingerprint,
        **({"from": config.start_from, "rows_before": config.start.rows} if config.start_from else {}),
        "rows": at.position,
        "steps": at.clock,
        "startup_seconds": max(0.0, coordinator.began - began),
        "train_seconds": at.train_seconds,
        "rows_per_second": at.position / at.train_seconds if at.train_seconds else 0.0,
        "test": as_json(quality),
        **({"train": as_json(training)} if training else {}),
        **({"diverged": diverged} if diverged else {}),
        "max_staleness": at.largest_lead,
        **when_and_where(began),
    } | coordinator.account()
