"""Which run was better, and how do the runs differ? Runs side by side, in the terminal and on a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.text import Text

from paceline.errors import UsageError
from paceline.files import replace_file
from paceline.reports.charts import line_legend
from paceline.reports.curves import curves_of_several
from paceline.reports.layout import charts, document, missing, note, section, table
from paceline.reports.markup import Markup, element
from paceline.reports.measures import MEASURES, NOTHING, best_places
from paceline.reports.terminal import print_table
from paceline.run_folder import TRAIN, RunFolder

BEST = " *"
# Every run has its own; it says nothing about how the run trained.
OWN_SETTINGS = ("run",)


class Row(NamedTuple):
    """One line of the comparison: a text per run, and the places of the best ones."""

    name: str
    texts: list[str]
    best: set[int]


class Comparison(NamedTuple):
    """The runs' names in order, the settings that differ, and the results."""

    names: list[str]
    settings: list[Row]
    results: list[Row]


def compare(runs: Sequence[RunFolder]) -> Comparison:
    """How runs differ. Only finished runs can be best, and only if they differ."""
    if len(runs) < 2:
        raise UsageError(f"compare takes at least two runs, not {len(runs)}", "paceline compare RUN RUN…")
    jobs = {run.job: run.path for run in runs}
    if len(jobs) > 1:
        kinds = " and ".join(f"`{path}` is a run of `{job}`" for job, path in jobs.items())
        raise UsageError(f"different jobs cannot be compared: {kinds}", "give runs of one job")
    configs = [{key: str(value) for key, value in run.settings.items()} for run in runs]
    keys = [key for key in dict.fromkeys(k for config in configs for k in config) if key not in OWN_SETTINGS]
    settings = [Row(key, [config.get(key, NOTHING) for config in configs], set()) for key in keys]
    results = [run.result for run in runs]
    measured = [
        Row(measure.label, [measure.text(result) for result in results], best_places(measure, results))
        for measure in MEASURES
    ]
    verdicts = [str(run.saved_diagnosis.get("bottleneck") or NOTHING) for run in runs]
    return Comparison(
        _names(runs),
        [row for row in settings if len(set(row.texts)) > 1],
        [row for row in [*measured, Row("bottleneck", verdicts, set())] if set(row.texts) != {NOTHING}],
    )


def print_comparison(comparison: Comparison) -> None:
    """The table on standard output, one column per run; the best of a line is bold with a star."""

    def lines(rows: Sequence[Row]) -> list[list[str | Text]]:
        return [[row.name, *(cell(text, place in row.best) for place, text in enumerate(row.texts))] for row in rows]

    def cell(text: str, is_best: bool) -> Text:
        return Text(text + BEST, style="bold green") if is_best else Text(text + " " * len(BEST))

    settings, results = lines(comparison.settings), lines(comparison.results)
    print_table(["", *comparison.names], [*settings, *([[]] if settings else []), *results], wrap=True)
    if any(row.best for row in comparison.results):
        print("* the best of its row")


def write_comparison(runs: Sequence[RunFolder], out: Path, failed: Mapping[str, str] | None = None) -> Comparison:
    """Write one page with the same table and the runs' curves over each other; returns the comparison.

    `failed` names runs that left nothing to compare, and why.
    """
    comparison = compare(runs)
    names, settings = comparison.names, comparison.settings
    title = " and ".join(names) if len(runs) == 2 else f"{len(runs)} runs"
    same = missing("None: the runs have the same configuration.")
    page = document(
        f"{title} – paceline",
        element("h1", f"{title}, side by side"),
        element("section", _table(names, comparison.results), note("Bold with a star: the best of its row.")),
        *_learning(names, runs),
        section("Settings that differ", _table(names, settings) if settings else same),
        *([section("Failed", table(("run", "error"), [*failed.items()]))] if failed else []),
    )
    replace_file(out, page)
    return comparison


def _table(names: Sequence[str], rows: Sequence[Row]) -> Markup:
    def cell(text: str, is_best: bool) -> Markup:
        return element("td", text + BEST, class_="number best") if is_best else element("td", text, class_="number")

    lines = [[row.name, *(cell(text, place in row.best) for place, text in enumerate(row.texts))] for row in rows]
    return table(["", *(element("th", name, class_="number") for name in names)], lines)


def _learning(names: Sequence[str], runs: Sequence[RunFolder]) -> list[Markup]:
    """The curves of training runs; other jobs have no such section."""
    metrics = {name: run.metrics if run.job == TRAIN else [] for name, run in zip(names, runs, strict=True)}
    if not any(run.job == TRAIN for run in runs):
        return []
    figures = curves_of_several(metrics)
    found = [line_legend(names), charts(figures)] if figures else [missing("No run has been evaluated yet.")]
    return [section("Learning", *found)]


def _names(runs: Sequence[RunFolder]) -> list[str]:
    """The names of the folders; if some are the same, the paths as given; if even those are, with numbers."""
    names = [run.path.resolve().name for run in runs]
    if len(set(names)) < len(names):
        names = [str(run.path) for run in runs]
    if len(set(names)) < len(names):
        names = [f"{place + 1}: {name}" for place, name in enumerate(names)]
    return names
