"""Which run was better, and what did they do differently? Runs side by side, in the terminal and on a page."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.errors import DataError, UsageError
from paceline.files import replace_file
from paceline.reports.charts import line_legend
from paceline.reports.curves import curves_of_several
from paceline.reports.layout import charts, document, missing, note, section
from paceline.reports.markup import Markup, element
from paceline.reports.verdict import diagnosis_of
from paceline.run_folder import TRAIN, Run

NOTHING = "–"
BEST = " *"


class Measure(NamedTuple):
    """A line of the comparison: where it stands in `result.json`, how it is written, and which value is best."""

    name: str
    path: tuple[str, ...]
    form: str
    best: Callable[[list[float]], float] | None


MEASURES = (
    Measure("status", ("status",), "", None),
    Measure("rows", ("rows",), ",", None),
    Measure("rows/s", ("rows_per_second",), ",.0f", max),
    Measure("seconds", ("train_seconds",), ",.2f", min),
    Measure("seconds to start", ("startup_seconds",), ",.2f", min),
    Measure("test loss", ("test", "loss"), ".5f", min),
    Measure("test error", ("test", "error"), ".5f", min),
    Measure("test AUC", ("test", "auc"), ".5f", max),
    Measure("test accuracy", ("test", "accuracy"), ".5f", max),
    Measure("seconds of the job", ("seconds",), ",.2f", min),
    Measure("elements/s", ("elements_per_second",), ",.0f", max),
    Measure("trace", ("trace",), ",.3f", None),
    Measure("largest staleness", ("max_staleness",), ",", None),
    Measure("wire bytes a row", ("wire", "bytes_per_row"), ",.0f", min),
    Measure("peak memory, MB", ("peak_memory_bytes",), ",.0f", min),
)
# What every run has of its own, and says nothing about how it trained.
OWN_SETTINGS = ("run",)


class Row(NamedTuple):
    """One line of the comparison: a text a run, and the places of the best ones."""

    name: str
    texts: list[str]
    best: set[int]


class Comparison(NamedTuple):
    """The runs' names, in order, and what is told of them: settings that differ, then results."""

    names: list[str]
    settings: list[Row]
    results: list[Row]


def compare(runs: Sequence[Run]) -> Comparison:
    """What sets runs apart. Only runs that are done can be best, and only where not all are alike."""
    if len(runs) < 2:
        raise UsageError(f"two runs or more can be compared, not {len(runs)}", "paceline compare RUN RUN…")
    configs = [_settings(run) for run in runs]
    keys = [key for key in dict.fromkeys(k for config in configs for k in config) if key not in OWN_SETTINGS]
    settings = [Row(key, [config.get(key, NOTHING) for config in configs], set()) for key in keys]
    results = [run.result for run in runs]
    measured = [_measured(measure, results) for measure in MEASURES]
    verdicts = [str(diagnosis_of(run).get("bottleneck") or NOTHING) for run in runs]
    return Comparison(
        _names(runs),
        [row for row in settings if len(set(row.texts)) > 1],
        [row for row in [*measured, Row("bottleneck", verdicts, set())] if set(row.texts) != {NOTHING}],
    )


def print_comparison(comparison: Comparison) -> None:
    """The table on standard output: a column a run; the best of a line is bold and has a star."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for name in comparison.names:
        table.add_column(Text(name), justify="right", overflow="fold")
    for rows in (comparison.settings, comparison.results):
        for row in rows:
            cells = [
                Text(text + BEST, style="bold green") if place in row.best else Text(text + " " * len(BEST))
                for place, text in enumerate(row.texts)
            ]
            table.add_row(Text(row.name), *cells)
        if rows is comparison.settings and rows:
            table.add_row()
    Console(width=None if sys.stdout.isatty() else 200, highlight=False).print(table)


def write_comparison(runs: Sequence[Run], out: Path, failed: Mapping[str, str] | None = None) -> Comparison:
    """Write one page with the same table and the runs' curves over each other; returns what `compare` does.

    `failed` are those of which there is nothing to compare, and why.
    """
    comparison = compare(runs)
    title = " and ".join(comparison.names) if len(runs) == 2 else f"{len(runs)} runs"
    metrics = {name: run.metrics for name, run in zip(comparison.names, runs, strict=True) if run.job == TRAIN}
    page = document(
        f"{title} – paceline",
        element("h1", f"{title}, side by side"),
        _results_table(comparison),
        *_learning(comparison.names, metrics),
        section("Settings that differ", _settings_table(comparison)),
        *([section("Failed", _reasons(failed))] if failed else []),
    )
    replace_file(out, page)
    return comparison


def _results_table(comparison: Comparison) -> Markup:
    return element("section", _table(comparison.names, comparison.results), note("Bold with a star: best of its line."))


def _settings_table(comparison: Comparison) -> Markup:
    if not comparison.settings:
        return missing("None: the runs have the same configuration.")
    return _table(comparison.names, comparison.settings)


def _reasons(failed: Mapping[str, str]) -> Markup:
    lines = [element("tr", element("td", name), element("td", reason)) for name, reason in failed.items()]
    return element("div", element("table", element("tbody", *lines)), class_="wide")


def _table(names: Sequence[str], rows: Sequence[Row]) -> Markup:
    head = element("tr", element("th", ""), *(element("th", name, class_="number") for name in names))
    lines = []
    for row in rows:
        cells = [
            element("td", text + BEST, class_="number best")
            if place in row.best
            else element("td", text, class_="number")
            for place, text in enumerate(row.texts)
        ]
        lines.append(element("tr", element("td", row.name), *cells))
    return element("div", element("table", element("thead", head), element("tbody", *lines)), class_="wide")


def _learning(names: Sequence[str], metrics: dict[str, list[dict[str, Any]]]) -> list[Markup]:
    """The curves of runs that train; jobs that learn nothing have no such section."""
    if not metrics:
        return []
    figures = curves_of_several({name: metrics.get(name, []) for name in names})
    found = [line_legend(names), charts(figures)] if figures else [missing("No run was evaluated yet.")]
    return [section("Learning", *found)]


def _names(runs: Sequence[Run]) -> list[str]:
    """The folders' names; where some are alike, all paths as they were given, numbered if even those are."""
    names = [run.path.resolve().name for run in runs]
    if len(set(names)) < len(names):
        names = [str(run.path) for run in runs]
    if len(set(names)) < len(names):
        names = [f"{place + 1}: {name}" for place, name in enumerate(names)]
    return names


def _measured(measure: Measure, results: Sequence[dict[str, Any]]) -> Row:
    values = [_value(measure, result) for result in results]
    texts = [NOTHING if value is None else format(value, measure.form) for value in values]
    able = [
        place for place, result in enumerate(results)
        if measure.best and values[place] is not None and result.get("status") == "done"
    ]  # fmt: skip
    if not measure.best or len({texts[place] for place in able}) < 2:
        return Row(measure.name, texts, set())
    best = measure.best([values[place] for place in able])
    return Row(measure.name, texts, {place for place in able if values[place] == best})


def _value(measure: Measure, result: dict[str, Any]) -> Any:
    value: Any = result
    for key in measure.path:
        value = value.get(key) if isinstance(value, dict) else None
    return value / 1e6 if value is not None and measure.name.endswith("MB") else value


def _settings(run: Run) -> dict[str, str]:
    """The run's configuration, sections as prefixes."""
    path = run.path / "config.toml"
    try:
        tree = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"`{path}` is not TOML: {error}", "leave that run out") from None
    flat: dict[str, str] = {}
    for key, value in tree.items():
        flat |= {f"{key}.{k}": str(v) for k, v in value.items()} if isinstance(value, dict) else {key: str(value)}
    return flat
