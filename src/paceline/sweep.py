"""How do several runs answer one question? A recipe says what varies; each point of its grid is a run of its own.

A recipe of `sweep` is one of `train` with two more parts: `[sweep]`, a list of values for each setting that varies, and
`[[points]]`, tables of settings that go together. Every point is combined with every value.

    data = "data/clicks"
    [sweep]
    pace = ["sync", "async"]
    batch_size = [100, 1000]

All points are checked before the first one runs. A point that is done is not run again, one that was stopped goes on,
one that failed is tried anew: so the same command carries a sweep on, whatever ended it.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from paceline.config import RunConfig, config_of, read_recipe
from paceline.data.datasets import open_for
from paceline.errors import ConfigError, InterruptedRunError, PacelineError, UsageError
from paceline.files import replace_file, translated_disk_errors
from paceline.reports.compare import write_comparison
from paceline.run_folder import Run
from paceline.training.checkpoint import has_checkpoint

MOST_POINTS = 1000
# Settings that say where a run lies, and not what it is.
PLACES = ("data", "run", "address")


class Point(NamedTuple):
    """One run of a sweep: the settings that set it apart, and all of them."""

    settings: dict[str, Any]
    config: RunConfig

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
    found = [_point(tree, varied, flags, list(settings)) for varied in combined]
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


def _point(tree: Mapping[str, Any], varied: dict[str, Any], flags: Mapping[str, Any], settings: list[str]) -> Point:
    whole = msgspec.json.decode(msgspec.json.encode(tree))
    try:
        return Point(varied, config_of(whole, flags, settings, varied))
    except ConfigError as error:
        name = Point(varied, RunConfig()).name
        raise ConfigError(f"point {name}: {error.message}", error.hint) from None


def check_data(points: list[Point]) -> None:
    """See that every point's data is there, and is what its model learns from."""
    for data, model in dict.fromkeys((point.config.data, point.config.model) for point in points):
        point = next(p for p in points if (p.config.data, p.config.model) == (data, model))
        try:
            open_for(point.config)
        except PacelineError as error:
            raise UsageError(f"point {point.name}: {error.message}", error.hint) from None


def run_sweep(points: list[Point], out: Path, train: Callable[[RunConfig], Run], resume: Callable[[Run], Run],
              tell: Callable[[str], None]) -> list[Outcome]:  # fmt: skip
    """Run all points that are not done yet, one after the other, each in a folder of its own below `out`."""
    check_data(points)
    with translated_disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for number, point in enumerate(points, 1):
        path = out / point.folder
        done = _finished(path, point)
        tell(f"[{number}/{len(points)}] {point.name}" + (": done before" if done else ""))
        outcomes.append(Outcome(point, done, "") if done else _run(path, point, train, resume))
        if outcomes[-1].error:
            tell(f"[{number}/{len(points)}] {point.name}: {outcomes[-1].error}")
    return outcomes


def _finished(path: Path, point: Point) -> Run | None:
    """The run of a point that is done; `ConfigError` where its folder holds another one."""
    if not (path / "config.toml").exists():
        return None
    run = Run(path)
    if _what(run.config) != _what(point.config):
        raise ConfigError(
            f"`{path}` was run with other settings than the recipe has now", "remove it, or choose another --out"
        )
    return run if run.result.get("status") == "done" else None


def _what(config: RunConfig) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(config).items() if name not in PLACES}


def _run(path: Path, point: Point, train: Callable[[RunConfig], Run], resume: Callable[[Run], Run]) -> Outcome:
    """Carry a point out, or on; what goes wrong with it does not concern the others."""
    try:
        if has_checkpoint(path / "checkpoints") and Run(path).result.get("status") != "failed":
            return Outcome(point, resume(Run(path)), "")
        shutil.rmtree(path, ignore_errors=True)
        return Outcome(point, train(msgspec.structs.replace(point.config, run=str(path))), "")
    except InterruptedRunError:
        raise
    except PacelineError as error:
        return Outcome(point, None, error.message)


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
        row["error"] = outcome.error or None
        rows.append(row)
    columns = [key for key in rows[0] if key in settings or any(row[key] is not None for row in rows)]
    return columns, [[row[key] for key in columns] for row in rows]


def write_summary(outcomes: list[Outcome], out: Path) -> list[Path]:
    """`summary.csv`, `summary.md` and, of two runs or more, `comparison.html` in the sweep's folder."""
    columns, rows = summarise(outcomes)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(rows)
    replace_file(out / "summary.csv", text.getvalue().encode())
    lines = [columns, ["---"] * len(columns), *([in_words(value) for value in row] for row in rows)]
    replace_file(out / "summary.md", "".join(f"| {' | '.join(line)} |\n" for line in lines).encode())
    written = [out / "summary.csv", out / "summary.md"]
    runs = [outcome.run for outcome in outcomes if outcome.run]
    if len(runs) > 1:
        write_comparison(runs, out / "comparison.html")
        written.append(out / "comparison.html")
    return written


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
