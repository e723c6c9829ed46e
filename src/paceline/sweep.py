"""How do several runs answer one question? A recipe says what varies; each point of its grid is a run of its own.

A recipe of `sweep` is one of `train` with two more parts: `[sweep]`, a list of values for each setting that varies, and
`[[points]]`, tables of settings that go together. Every point is combined with every value.

    data = "data/clicks"
    [sweep]
    pace = ["sync", "async"]
    batch_size = [100, 1000]

With `job = "trace"` the settings are those of `paceline trace`; `ops = true` times the operations of a gradient step
after each run, as `paceline diagnose --ops` does.

All points are checked before the first one runs. A point that is done is not run again, one that was stopped goes on,
one that failed is tried anew: so the same command carries a sweep on, whatever ended it.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import re
import shutil
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from paceline.config import SPARSE_MODEL, RunConfig, config_of, overrule, read_recipe
from paceline.data.datasets import AnyDataset, open_for
from paceline.data.images.dataset import ImageDataset
from paceline.diagnosis.operations import add_operations
from paceline.errors import ConfigError, DataError, DivergedError, InterruptedRunError, PacelineError, UsageError
from paceline.files import locked, refuse_existing, replace_file, translated_disk_errors
from paceline.matrices.settings import TraceSettings, trace_settings_of
from paceline.models.dense import build_model
from paceline.reports.compare import write_comparison
from paceline.run_folder import TRAIN, Run
from paceline.training.checkpoint import has_checkpoint
from paceline.training.embedded.crew import check_clock_size

MOST_POINTS = 1000
LONGEST_NAME = 200
LOCK = "sweep.lock"
JOBS = (TRAIN, "trace")
# Settings that say where things lie, and not what a run is; of data, its fingerprint does.
PLACES = ("data", "run", "address")


class Point(NamedTuple):
    """One run of a sweep: the settings that set it apart, all of them, and whether to time a step's operations."""

    settings: dict[str, Any]
    config: RunConfig | TraceSettings
    ops: bool = False

    @property
    def name(self) -> str:
        """As people read it.

        >>> Point({"pace": "async", "batch_size": 100}, RunConfig()).name
        'pace=async, batch_size=100'
        """
        return ", ".join(f"{key}={value}" for key, value in self.settings.items())

    @property
    def folder(self) -> str:
        """As its folder is called.

        >>> Point({"pace": "async", "optimizer.l2": 0.5}, RunConfig()).folder
        'pace-async_optimizer.l2-0.5'
        """
        words = "_".join(f"{key}-{value}" for key, value in self.settings.items()) or "only"
        name = re.sub(r"[^\w.\-]+", "-", words)
        if name == words and len(name.encode()) <= LONGEST_NAME:
            return name
        # What was left out may be all that sets it apart.
        return f"{name[: LONGEST_NAME // 4]}-{hashlib.sha256(words.encode()).hexdigest()[:8]}"


class Outcome(NamedTuple):
    """What came of a point: its run, and what went wrong."""

    point: Point
    run: Run | None
    error: str = ""
    hint: str = ""


def read_sweep(recipe: Path, flags: Mapping[str, Any], settings: Sequence[str] = ()) -> list[Point]:
    """All points of a recipe, checked; flags and `--set` hold for each."""
    tree = read_recipe(recipe)
    grid, points = tree.pop("sweep", {}), tree.pop("points", [])
    job, ops = tree.pop("job", TRAIN), tree.pop("ops", False)
    _check_job(recipe, job, ops)
    if not grid and not points:
        raise ConfigError(f"`{recipe}` varies nothing", 'a table [sweep] lists values: pace = ["sync", "async"]')
    if not isinstance(points, list) or not all(isinstance(point, dict) and point for point in points):
        raise ConfigError(f"`points` in `{recipe}` is no list of tables", "[[points]], then settings, for each")
    flat = _flat(grid if isinstance(grid, dict) else {"sweep": grid})
    for key, values in flat.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"`sweep.{key}` is {values!r}; it is a list of values", f"{key} = [1, 2, 4]")
    given = {*flags, *(setting.partition("=")[0].strip() for setting in settings)}
    if twice := sorted({key for point in points for key in _flat(point)} & {*flat}):
        raise ConfigError(f"`{recipe}` has `{twice[0]}` in [[points]] and in [sweep]", "leave one of them out")
    if varied := sorted(given & {*flat, *(key for point in points for key in _flat(point))}):
        raise ConfigError(f"`{varied[0]}` is what `{recipe}` varies", "change the recipe, or leave it out here")
    combined = [
        {**_flat(point), **dict(zip(flat, values, strict=True))}
        for point in points or [{}]
        for values in itertools.product(*flat.values())
    ]
    if len(combined) > MOST_POINTS:
        raise ConfigError(f"`{recipe}` asks for {len(combined):,} runs; {MOST_POINTS:,} is the most", "vary less")
    found = [_point(job, tree, settings_of, flags, list(settings))._replace(ops=ops) for settings_of in combined]
    for point in found:
        _check_ops(point)
    names = [point.folder for point in found]
    for point in found:
        if names.count(point.folder) > 1:
            raise ConfigError(f"`{recipe}` asks for {point.name} more than once", "leave one out")
    return found


def _flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of sections as section.key."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value}
    return found


def _check_job(recipe: Path, job: Any, ops: Any) -> None:
    if job not in JOBS:
        raise ConfigError(f"`job` in `{recipe}` is {job!r}; it is {' or '.join(JOBS)}", f'job = "{JOBS[-1]}"')
    if not isinstance(ops, bool):
        raise ConfigError(f"`ops` in `{recipe}` is {ops!r}; it is true or false", "ops = true")


def _check_ops(point: Point) -> None:
    config = point.config
    if point.ops and not (isinstance(config, RunConfig) and config.model == SPARSE_MODEL):
        raise ConfigError(
            f"point {point.name}: `ops` is for the steps of `{SPARSE_MODEL}` only", "leave `ops` out of the recipe"
        )


def _point(job: str, tree: Mapping[str, Any], varied: dict[str, Any], flags: Mapping[str, Any],
           settings: list[str]) -> Point:  # fmt: skip
    whole = msgspec.json.decode(msgspec.json.encode(tree))
    try:
        if job == TRAIN:
            return Point(varied, config_of(whole, flags, settings, varied))
        overrule(whole, flags, settings, varied)
        return Point(varied, trace_settings_of(whole))
    except ConfigError as error:
        name = Point(varied, RunConfig()).name
        raise ConfigError(f"point {name}: {error.message}", error.hint) from None


def check_data(points: list[Point]) -> list[str]:
    """See that every point's data is there, and what its model learns from; the fingerprints of all points' data."""
    opened: dict[str, AnyDataset] = {}
    found = []
    for point in points:
        config, fingerprint = point.config, ""
        if isinstance(config, RunConfig):
            key = repr((config.data, config.model, config.train_rows, config.images, config.device))
            try:
                dataset = opened[key] = opened.get(key) or _open(config)
                if not isinstance(dataset, ImageDataset):
                    check_clock_size(config, dataset)
            except PacelineError as error:
                raise UsageError(f"point {point.name}: {error.message}", error.hint) from None
            fingerprint = dataset.fingerprint
        found.append(fingerprint)
    return found


def _open(config: RunConfig) -> AnyDataset:
    """A point's data, of which its model can be built."""
    dataset = open_for(config)
    if isinstance(dataset, ImageDataset):
        build_model(config, dataset.shape, dataset.classes).close()
    return dataset


class Runner(NamedTuple):
    """How a sweep carries its points out; `tell` hears, in lines, how far it is."""

    start: Callable[[RunConfig | TraceSettings], Run]
    resume: Callable[[Run, RunConfig], Run]
    tell: Callable[[str], None]


def run_sweep(points: list[Point], out: Path, runner: Runner) -> tuple[list[Outcome], list[Path]]:
    """Run all points that are not done yet, one after the other, each in a folder of its own below `out`; what came of
    them, and the files of `write_summary`, whose tables are kept up to date on the way.
    """
    fingerprints = check_data(points)
    with translated_disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        (out / LOCK).touch()
    with locked(out / LOCK):
        begun = [_begun(out / point.folder, point, data) for point, data in zip(points, fingerprints, strict=True)]
        outcomes: list[Outcome] = []
        seconds: list[float] = []
        try:
            for number, (point, run) in enumerate(zip(points, begun, strict=True), 1):
                name = f"[{number}/{len(points)}] {point.name}"
                if run and _is_done(run, point):
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
    """As people say it.

    >>> _duration(40), _duration(400), _duration(8000)
    ('40 s', '7 min', '2.2 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _begun(path: Path, point: Point, fingerprint: str) -> Run | None:
    """The run in a point's folder, if there is one; an error where that is another one, or no run."""
    if not (path / "config.toml").exists():
        refuse_existing(path)
        return None
    run = Run(path)
    before = read_recipe(path / "config.toml")
    if _what(before) != _what(msgspec.to_builtins(point.config)):
        raise ConfigError(
            f"`{path}` was run with other settings than the recipe has now", "remove it, or choose another --out"
        )
    if run.result.get("data_fingerprint", fingerprint) != fingerprint:
        raise ConfigError(f"`{path}` was run on other data", "remove it, or choose another --out")
    return run


def _is_done(run: Run, point: Point) -> bool:
    return run.result.get("status") == "done" and (not point.ops or bool(_operations(run)))


def _what(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in PLACES}


def _run(path: Path, point: Point, run: Run | None, runner: Runner) -> Outcome:
    """Carry a point out, or on; what goes wrong with it does not concern the others."""
    try:
        if run is None or run.result.get("status") != "done":
            run = _train(path, point, run, runner)
        if point.ops:
            add_operations(run, run.diagnosis)
        return Outcome(point, run)
    except InterruptedRunError as error:
        raise InterruptedRunError(error.message, "the same command goes on with the sweep") from None
    except PacelineError as error:
        return Outcome(point, run, error.message, error.hint)
    except Exception as error:  # noqa: BLE001 (a library's error ends its point, and not the others)
        with suppress(OSError):
            (path / "traceback.txt").write_text(traceback.format_exc())
        first = (str(error).splitlines() or [""])[0]
        return Outcome(point, run, f"{type(error).__name__}: {first}", f"see {path / 'traceback.txt'}")


def _train(path: Path, point: Point, run: Run | None, runner: Runner) -> Run:
    """Go on from a point's checkpoint, if it has one that is of use; else begin."""
    if run and isinstance(point.config, RunConfig) and has_checkpoint(path / "checkpoints"):
        try:
            # Where the loss was no number any more, it will not be one again.
            if run.result.get("error_kind") != DivergedError.__name__:
                return runner.resume(run, point.config)
        except DataError as error:
            runner.tell(f"{point.name}: {error.message}; beginning anew")
    if run:
        with translated_disk_errors(path):
            shutil.rmtree(path)
    return runner.start(msgspec.structs.replace(point.config, run=str(path)))


def _operations(run: Run) -> list[dict[str, Any]]:
    """The operations of a step that were timed, if they were."""
    path = run.path / "diagnosis.json"
    return list(run.diagnosis.get("operations", [])) if path.exists() else []


# -- what is written down

MEASURES: dict[str, tuple[str, ...]] = {
    "status": ("status",),
    "rows": ("rows",),
    "rows_per_second": ("rows_per_second",),
    "train_seconds": ("train_seconds",),
    "startup_seconds": ("startup_seconds",),
    "steps": ("steps",),
    "test_loss": ("test", "loss"),
    "test_error": ("test", "error"),
    "test_auc": ("test", "auc"),
    "test_accuracy": ("test", "accuracy"),
    "bytes_per_row": ("wire", "bytes_per_row"),
    "max_staleness": ("max_staleness",),
    "seconds": ("seconds",),
    "elements_per_second": ("elements_per_second",),
    "blocks_made": ("blocks_made",),
    "trace": ("trace",),
    "peak_memory_bytes": ("peak_memory_bytes",),
}


# What a terminal has room for, besides what varied.
IN_SHORT = ("status", "rows_per_second", "train_seconds", "test_loss", "test_error", "test_auc", "test_accuracy",
            "seconds", "elements_per_second", "trace", "bottleneck", "error")  # fmt: skip


def in_short(outcomes: list[Outcome]) -> tuple[list[str], list[list[str]]]:
    """The columns of `summarise` that a terminal has room for, as text."""
    columns, rows = summarise(outcomes)
    varied = {key for outcome in outcomes for key in outcome.point.settings}
    kept = [place for place, name in enumerate(columns) if name in varied or name in IN_SHORT]
    return [columns[place] for place in kept], [[in_words(row[place]) for place in kept] for row in rows]


def summarise(outcomes: list[Outcome]) -> tuple[list[str], list[list[Any]]]:
    """A table: what varied, what came out, and the verdict; columns that no run has are left out."""
    settings = list(dict.fromkeys(key for outcome in outcomes for key in outcome.point.settings))
    rows: list[dict[str, Any]] = []
    for outcome in outcomes:
        result: dict[str, Any] = (outcome.run.result if outcome.run else {}) or {"status": "failed"}
        row: dict[str, Any] = {key: outcome.point.settings.get(key) for key in settings}
        for name, path in MEASURES.items():
            value: Any = result
            for key in path:
                value = value.get(key) if isinstance(value, dict) else None
            row[name] = value
        row["seconds_a_step"] = result["train_seconds"] / result["steps"] if result.get("steps") else None
        path_of = outcome.run.path / "diagnosis.json" if outcome.run else None
        row["bottleneck"] = (
            outcome.run.diagnosis["bottleneck"] if outcome.run and path_of and path_of.exists() else None
        )
        for one in _operations(outcome.run) if outcome.run else []:
            row[f"{one['name'].replace(' ', '_')}_ns_a_row"] = one["nanoseconds_per_row"]
        row["error"] = outcome.error or None
        rows.append(row)
    keys = dict.fromkeys(key for row in rows for key in row)
    columns = [key for key in keys if key in settings or any(row.get(key) is not None for row in rows)]
    return columns, [[row.get(key) for key in columns] for row in rows]


def node_table(outcomes: list[Outcome]) -> tuple[list[str], list[list[Any]]]:
    """A table of what each node was used for, a line a run and node; empty where all ran on one node."""
    settings = list(dict.fromkeys(key for outcome in outcomes for key in outcome.point.settings))
    rows = []
    for outcome in outcomes:
        path = outcome.run.path / "diagnosis.json" if outcome.run else None
        nodes = outcome.run.diagnosis.get("nodes", []) if outcome.run and path and path.exists() else []
        for node in nodes if len(nodes) > 1 else []:
            used = {name: value for name, value in node.items() if name != "pressure"}
            rows.append([*(outcome.point.settings.get(key) for key in settings), *used.values()])
            columns = [*settings, *used]
    return (columns, rows) if rows else ([], [])


def write_summary(outcomes: list[Outcome], out: Path) -> list[Path]:
    """`summary` and, of runs on several nodes, `nodes`, each as .csv and .md; of two runs or more `comparison.html`.
    Those of them that there is nothing for are removed.
    """
    written = write_tables(outcomes, out)
    runs = [outcome.run for outcome in outcomes if outcome.run and outcome.run.result]
    page = out / "comparison.html"
    if len(runs) > 1:
        write_comparison(runs, page, {outcome.point.name: outcome.error for outcome in outcomes if outcome.error})
        written.append(page)
    else:
        page.unlink(missing_ok=True)
    return written


def write_tables(outcomes: list[Outcome], out: Path) -> list[Path]:
    """The tables of `write_summary`."""
    written = []
    for name, table in {"summary": summarise(outcomes), "nodes": node_table(outcomes)}.items():
        if table[1]:
            written += _write_table(*table, out / name)
        else:
            for suffix in (".csv", ".md"):
                (out / name).with_suffix(suffix).unlink(missing_ok=True)
    return written


def _write_table(columns: list[str], rows: list[list[Any]], path: Path) -> list[Path]:
    """The table for machines and for people."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(rows)
    cells = [[" ".join(in_words(value).replace("|", "\\|").split()) for value in row] for row in rows]
    lines = [columns, ["---"] * len(columns), *cells]
    files = {
        ".csv": text.getvalue(),
        ".md": "".join(f"| {' | '.join(line)} |\n" for line in lines),
    }
    for suffix, content in files.items():
        replace_file(path.with_suffix(suffix), content.encode())
    return [path.with_suffix(suffix) for suffix in files]


def in_words(value: Any) -> str:
    """A cell of a table.

    >>> [in_words(value) for value in (None, 0.123456, 1234567.8, 12, "sync")]
    ['–', '0.12346', '1,234,568', '12', 'sync']
    """
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.5g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
