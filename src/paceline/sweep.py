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
import io
import itertools
import re
import shutil
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from paceline.config import SPARSE_MODEL, RunConfig, config_of, overrule, read_recipe
from paceline.data.datasets import open_for
from paceline.diagnosis.operations import add_operations
from paceline.errors import ConfigError, InterruptedRunError, PacelineError, UsageError
from paceline.files import replace_file, translated_disk_errors
from paceline.matrices.settings import TraceSettings, trace_settings_of
from paceline.reports.compare import write_comparison
from paceline.run_folder import TRAIN, Run
from paceline.training.checkpoint import has_checkpoint

MOST_POINTS = 1000
JOBS = (TRAIN, "trace")
# Settings that say where a run lies, and not what it is.
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
        words = "_".join(f"{key}-{value}" for key, value in self.settings.items())
        return re.sub(r"[^\w.\-]+", "-", words) or "only"


class Outcome(NamedTuple):
    """What came of a point: its run, or what went wrong."""

    point: Point
    run: Run | None
    error: str


def read_sweep(recipe: Path, flags: Mapping[str, Any], settings: Iterable[str] = ()) -> list[Point]:
    """All points of a recipe, checked; flags and `--set` hold for each, unless it varies them."""
    tree = read_recipe(recipe)
    grid, points = tree.pop("sweep", {}), tree.pop("points", [])
    job, ops = tree.pop("job", TRAIN), tree.pop("ops", False)
    _check_job(recipe, tree, job, ops)
    if not grid and not points:
        raise ConfigError(f"`{recipe}` varies nothing", 'a table [sweep] lists values: pace = ["sync", "async"]')
    if not isinstance(points, list) or not all(isinstance(point, dict) and point for point in points):
        raise ConfigError(f"`points` in `{recipe}` is no list of tables", "[[points]], then settings, for each")
    flat = _flat(grid if isinstance(grid, dict) else {"sweep": grid})
    for key, values in flat.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"`sweep.{key}` is {values!r}; it is a list of values", f"{key} = [1, 2, 4]")
    combined = [
        {**_flat(point), **dict(zip(flat, values, strict=True))}
        for point in points or [{}]
        for values in itertools.product(*flat.values())
    ]
    if len(combined) > MOST_POINTS:
        raise ConfigError(f"`{recipe}` asks for {len(combined):,} runs; {MOST_POINTS:,} is the most", "vary less")
    found = [_point(job, tree, varied, flags, list(settings))._replace(ops=ops) for varied in combined]
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


def _check_job(recipe: Path, tree: Mapping[str, Any], job: Any, ops: Any) -> None:
    if job not in JOBS:
        raise ConfigError(f"`job` in `{recipe}` is {job!r}; it is {' or '.join(JOBS)}", f'job = "{JOBS[-1]}"')
    if not isinstance(ops, bool):
        raise ConfigError(f"`ops` in `{recipe}` is {ops!r}; it is true or false", "ops = true")
    if ops and (job != TRAIN or tree.get("model", SPARSE_MODEL) != SPARSE_MODEL):
        raise ConfigError(f"`ops` in `{recipe}`: only the steps of `{SPARSE_MODEL}` can be timed", "leave `ops` out")


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


def check_data(points: list[Point]) -> None:
    """See that every point's data is there, and is what its model learns from."""
    seen: set[tuple[str, str]] = set()
    for point in points:
        config = point.config
        if not isinstance(config, RunConfig) or (config.data, config.model) in seen:
            continue
        seen.add((config.data, config.model))
        try:
            open_for(config)
        except PacelineError as error:
            raise UsageError(f"point {point.name}: {error.message}", error.hint) from None


def run_sweep(points: list[Point], out: Path, start: Callable[[RunConfig | TraceSettings], Run],
              resume: Callable[[Run], Run], tell: Callable[[str], None]) -> list[Outcome]:  # fmt: skip
    """Run all points that are not done yet, one after the other, each in a folder of its own below `out`."""
    check_data(points)
    with translated_disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for number, point in enumerate(points, 1):
        path = out / point.folder
        done = _finished(path, point)
        tell(f"[{number}/{len(points)}] {point.name}" + (": done before" if done else ""))
        outcomes.append(Outcome(point, done, "") if done else _run(path, point, start, resume))
        if outcomes[-1].error:
            tell(f"[{number}/{len(points)}] {point.name}: {outcomes[-1].error}")
    return outcomes


def _finished(path: Path, point: Point) -> Run | None:
    """The run of a point that is done; `ConfigError` where its folder holds another one."""
    if not (path / "config.toml").exists():
        return None
    run = Run(path)
    before = tomllib.loads((path / "config.toml").read_text("utf-8"))
    if _what(before) != _what(msgspec.to_builtins(point.config)):
        raise ConfigError(
            f"`{path}` was run with other settings than the recipe has now", "remove it, or choose another --out"
        )
    return run if run.result.get("status") == "done" and (not point.ops or _operations(run)) else None


def _what(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in PLACES}


def _run(path: Path, point: Point, start: Callable[[RunConfig | TraceSettings], Run],
         resume: Callable[[Run], Run]) -> Outcome:  # fmt: skip
    """Carry a point out, or on; what goes wrong with it does not concern the others."""
    try:
        if has_checkpoint(path / "checkpoints") and Run(path).result.get("status") != "failed":
            run = resume(Run(path))
        else:
            shutil.rmtree(path, ignore_errors=True)
            run = start(msgspec.structs.replace(point.config, run=str(path)))
        if point.ops:
            add_operations(run, run.diagnosis)
        return Outcome(point, run, "")
    except InterruptedRunError:
        raise
    except PacelineError as error:
        return Outcome(point, None, error.message)


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


def summarise(outcomes: list[Outcome]) -> tuple[list[str], list[list[Any]]]:
    """A table: what varied, what came out, and the verdict; columns that no run has are left out."""
    settings = list(dict.fromkeys(key for outcome in outcomes for key in outcome.point.settings))
    rows: list[dict[str, Any]] = []
    for outcome in outcomes:
        result: dict[str, Any] = outcome.run.result if outcome.run else {"status": "failed"}
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
    """`summary` and, of runs on several nodes, `nodes`, each as .csv and .md; of two runs or more `comparison.html`."""
    tables = {"summary": summarise(outcomes), "nodes": node_table(outcomes)}
    written = [path for name, table in tables.items() if table[1] for path in _write_table(*table, out / name)]
    runs = [outcome.run for outcome in outcomes if outcome.run]
    if len(runs) > 1:
        write_comparison(runs, out / "comparison.html")
        written.append(out / "comparison.html")
    return written


def _write_table(columns: list[str], rows: list[list[Any]], path: Path) -> list[Path]:
    """The table for machines and for people."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(rows)
    lines = [columns, ["---"] * len(columns), *([in_words(value) for value in row] for row in rows)]
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
