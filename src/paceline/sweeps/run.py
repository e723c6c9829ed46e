"""How is a sweep run? All points are checked first; then each runs in its own folder.

A point that is done is not run again, one that was stopped continues, and one that failed is tried again. So the same
command continues a sweep, however it ended.
"""

from __future__ import annotations

import shutil
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from paceline.config import load_config
from paceline.data.datasets import AnyDataset
from paceline.diagnosis.explain import write_diagnosis
from paceline.diagnosis.operations import add_operations
from paceline.errors import ConfigError, DataError, DivergedError, InterruptedRunError, PacelineError, UsageError
from paceline.files import locked, open_regular, refuse_existing, replace_file, translated_disk_errors
from paceline.matrices.settings import TraceSettings, load_trace
from paceline.models.inputs import open_for
from paceline.models.registry import ALIASES, find
from paceline.parameters.layout import Layout
from paceline.run_folder import TRAIN, RunFolder
from paceline.settings import RunConfig
from paceline.sweeps.points import Point, for_recipes
from paceline.sweeps.table import Outcome, write_summary, write_tables
from paceline.training.checkpoint import has_checkpoint
from paceline.training.checks import check_updates

LOCK = "sweep.lock"
# Settings that say where things are, not what a run is. The data's fingerprint says which data it is.
PLACES = ("data", "run", "address", "track")
# How to read the settings of a run of each job.
LOADERS: dict[str, Callable[[Path], RunConfig | TraceSettings]] = {TRAIN: load_config, "trace": load_trace}


class Runner(NamedTuple):
    """How a sweep runs its points; `tell` is called with each line about progress."""

    start: Callable[[RunConfig | TraceSettings], RunFolder]
    resume: Callable[[RunFolder, RunConfig], RunFolder]
    tell: Callable[[str], None]


def run_sweep(points: list[Point], out: Path, runner: Runner) -> tuple[list[Outcome], list[Path]]:
    """Run all points that are not done yet, one after another, each in its own folder under `out`.

    Returns their outcomes, and the files of `write_summary`. Its tables are updated after each point.
    """
    fingerprints = check_data(points)
    with translated_disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        open(out / LOCK, "ab", opener=open_regular).close()
    with locked(out / LOCK):
        begun = [_begun(out / point.folder, point, data) for point, data in zip(points, fingerprints, strict=True)]
        _tell_other_defaults(points, begun, runner.tell)
        outcomes: list[Outcome] = []
        seconds: list[float] = []
        try:
            for number, (point, run) in enumerate(zip(points, begun, strict=True), 1):
                name = f"[{number}/{len(points)}] {point.name}"
                # Asked for operations, a run without them is not done.
                if run and _is_done(run) and (not point.ops or run.saved_diagnosis.get("operations")):
                    runner.tell(f"{name}: done before")
                    outcomes.append(Outcome(point, run))
                    continue
                runner.tell(name)
                began = time.monotonic()
                outcomes.append(_run(out / point.folder, point, run, runner))
                seconds.append(time.monotonic() - began)
                _tell_outcome(name, outcomes[-1], seconds, len(points) - number, runner.tell)
                write_tables(outcomes, out)
        finally:
            written = write_summary(outcomes, out)
    return outcomes, written


def _tell_outcome(name: str, outcome: Outcome, seconds: list[float], left: int, tell: Callable[[str], None]) -> None:
    if outcome.error:
        tell(f"{name}: {outcome.error}")
    if outcome.hint:
        tell(f"hint: {outcome.hint}")
    if left:
        about = left * sum(seconds) / len(seconds)
        tell(f"{name}: {seconds[-1]:.1f} s; {left} to go, about {_duration(about)}")


def _duration(seconds: float) -> str:
    """A duration in words.

    >>> _duration(40), _duration(400), _duration(8000)
    ('40 s', '7 min', '2.2 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _begun(path: Path, point: Point, fingerprint: str) -> RunFolder | None:
    """The run in a point's folder, if there is one; an error if that is a different run, or not a run."""
    if not (path / "config.toml").exists():
        refuse_existing(path)
        return None
    run = RunFolder(path)
    before = LOADERS.get(run.job, load_config)(path / "config.toml")
    hint = "remove it, or choose another --out"
    if _fixed(before, point) != _fixed(point.config, point):
        raise ConfigError(f"`{path}` was run with other settings than the recipe has now", hint)
    if run.result.get("data_fingerprint", fingerprint) != fingerprint:
        raise ConfigError(f"`{path}` was run on other data", hint)
    return run


def _fixed(config: RunConfig | TraceSettings, point: Point) -> dict[str, Any]:
    """The settings that a run and its point must share: neither places nor what the recipe leaves to defaults, or to
    the labels of the data, as it may leave the name of the loss.
    """
    # What a run takes over from the model that it starts from is not in its config.toml.
    free = {*PLACES, *point.defaulted, "start", "chosen"}
    found = {name: value for name, value in msgspec.to_builtins(config).items() if name not in free}
    if isinstance(point.config, RunConfig) and not point.config.loss.name:
        found["loss"] = {**found["loss"], "name": ""}
    if "model" in found:
        found["model"] = ALIASES.get(found["model"], found["model"])
    return found


def _tell_other_defaults(points: list[Point], begun: list[RunFolder | None], tell: Callable[[str], None]) -> None:
    """Say so if runs of this sweep have other defaults than its further points will get."""
    if None not in begun:
        return
    for point, run in zip(points, begun, strict=True):
        before = run.settings if run else {}
        now = {name: getattr(point.config, name) for name in sorted(point.defaulted) if run}
        if other := [name for name in now if now[name] != before.get(name)]:
            was, is_now = (", ".join(f"{name} {values[name]}" for name in other) for values in (before, now))
            tell(f"note: {point.name} was begun with {was}; by default, further points now get {is_now}")
            tell("hint: " + " ".join(f"--set {name}={before[name]}" for name in other) + " gives all points the same")
            return


def _is_done(run: RunFolder) -> bool:
    return run.result.get("status") == "done"


def _run(path: Path, point: Point, run: RunFolder | None, runner: Runner) -> Outcome:
    """Run a point, or continue it. Its errors do not stop the other points."""
    try:
        if run is None or not _is_done(run):
            run = _train(path, point, run, runner)
        if point.ops:
            add_operations(run, run.saved_diagnosis or write_diagnosis(run))
        return Outcome(point, run)
    except InterruptedRunError as error:
        raise InterruptedRunError(error.message, "the same command continues the sweep") from None
    except PacelineError as error:
        return Outcome(point, run, error.message, error.hint)
    except Exception as error:  # noqa: BLE001 (a library's error ends its point, not the sweep)
        with suppress(PacelineError):
            replace_file(path / "traceback.txt", traceback.format_exc().encode(errors="backslashreplace"))
        first = (str(error).splitlines() or [""])[0]
        return Outcome(point, run, f"{type(error).__name__}: {first}", f"see {path / 'traceback.txt'}")


def _train(path: Path, point: Point, run: RunFolder | None, runner: Runner) -> RunFolder:
    """Continue from a point's checkpoint if it has a usable one; otherwise start."""
    if run and isinstance(point.config, RunConfig) and has_checkpoint(path / "checkpoints"):
        try:
            # A run that has diverged would diverge again.
            if run.result.get("error_kind") != DivergedError.__name__:
                return runner.resume(run, point.config)
        except DataError as error:
            runner.tell(f"{point.name}: {error.message}; starting over")
    if run:
        # Not while another process trains in this folder.
        with locked(path / "config.toml"), translated_disk_errors(path):
            shutil.rmtree(path)
    return runner.start(msgspec.structs.replace(point.config, run=str(path)))


def check_data(points: list[Point]) -> list[str]:
    """Check that every point's data exists and suits its model; the fingerprints of all points' data."""
    opened: dict[str, tuple[AnyDataset, Layout]] = {}
    found = []
    for point in points:
        config, fingerprint = point.config, ""
        if isinstance(config, RunConfig):
            fit = config.loss, config.factors, config.early_stopping
            key = repr((config.data, config.model, config.train_rows, config.images, config.device, fit))
            try:
                dataset, layout = opened[key] = opened.get(key) or _open(config)
                check_updates(config, dataset, layout)
            except PacelineError as error:
                raise UsageError(f"point {point.name}: {error.message}", for_recipes(error.hint)) from None
            fingerprint = dataset.fingerprint
        found.append(fingerprint)
    return found


def _open(config: RunConfig) -> tuple[AnyDataset, Layout]:
    """A point's data, and the layout of its model, which can be built for it."""
    dataset = open_for(config)
    return dataset, find(config.model).build(config, dataset, 1).layout
