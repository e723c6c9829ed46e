"""What are the results of a sweep? One table of all points, and a page that compares their runs."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any, NamedTuple

from paceline.files import replace_file
from paceline.reports.compare import write_comparison
from paceline.reports.measures import MEASURES, NOTHING
from paceline.run_folder import RunFolder
from paceline.sweeps.points import Point

# The columns that fit on a terminal, besides what varies.
ON_TERMINAL = {*(measure.name for measure in MEASURES if measure.on_terminal), "bottleneck", "error"}

Table = tuple[list[str], list[list[Any]]]


class Outcome(NamedTuple):
    """The run of a point, if there is one, and what went wrong, if anything."""

    point: Point
    run: RunFolder | None
    error: str = ""
    hint: str = ""


def terminal_table(outcomes: list[Outcome]) -> tuple[list[str], list[list[str]]]:
    """The columns of `summarise` that fit on a terminal, as text."""
    columns, rows = summarise(outcomes)
    kept = [place for place, name in enumerate(columns) if name in {*_varied(outcomes), *ON_TERMINAL}]
    return [columns[place] for place in kept], [[in_words(row[place]) for place in kept] for row in rows]


def summarise(outcomes: list[Outcome]) -> Table:
    """One line per point: what varies, the results and the verdict. Columns without any value are left out."""
    settings = _varied(outcomes)
    rows: list[dict[str, Any]] = []
    for outcome in outcomes:
        result = (outcome.run.result if outcome.run else {}) or {"status": "failed"}
        diagnosis = outcome.run.saved_diagnosis if outcome.run else {}
        row: dict[str, Any] = {key: outcome.point.settings.get(key) for key in settings}
        row |= {measure.name: measure.value(result) for measure in MEASURES}
        row["seconds_per_step"] = result["train_seconds"] / result["steps"] if result.get("steps") else None
        row["bottleneck"] = diagnosis.get("bottleneck")
        for one in diagnosis.get("operations", []):
            row[f"{one['name'].replace(' ', '_')}_ns_per_row"] = one["nanoseconds_per_row"]
        row["error"] = outcome.error or None
        rows.append(row)
    keys = dict.fromkeys(key for row in rows for key in row)
    columns = [key for key in keys if key in settings or any(row.get(key) is not None for row in rows)]
    return columns, [[row.get(key) for key in columns] for row in rows]


def node_table(outcomes: list[Outcome]) -> Table:
    """One line per run and node: how much each node was used. Empty if every run was on one node."""
    settings = _varied(outcomes)
    columns: list[str] = []
    rows = []
    for outcome in outcomes:
        nodes = outcome.run.saved_diagnosis.get("nodes", []) if outcome.run else []
        for node in nodes if len(nodes) > 1 else []:
            used = {name: value for name, value in node.items() if name != "pressure"}
            rows.append([*(outcome.point.settings.get(key) for key in settings), *used.values()])
            columns = [*settings, *used]
    return columns, rows


def _varied(outcomes: list[Outcome]) -> list[str]:
    return list(dict.fromkeys(key for outcome in outcomes for key in outcome.point.settings))


def write_summary(outcomes: list[Outcome], out: Path) -> list[Path]:
    """Write the tables `summary` and `nodes`, each as .csv and .md, and the page `comparison.html`.

    `nodes` needs runs on several nodes, the page needs two runs. Otherwise, earlier files of these names are removed.
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
    """Write the tables of `write_summary`: .csv for programs, .md for people."""
    written = []
    for name, (columns, rows) in {"summary": summarise(outcomes), "nodes": node_table(outcomes)}.items():
        text = io.StringIO()
        csv.writer(text).writerows([columns, *rows])
        cells = [[" ".join(in_words(value).replace("|", "\\|").split()) for value in row] for row in rows]
        lines = [columns, ["---"] * len(columns), *cells]
        contents = {".csv": text.getvalue(), ".md": "".join(f"| {' | '.join(line)} |\n" for line in lines)}
        for suffix, content in contents.items():
            path = out / f"{name}{suffix}"
            if rows:
                replace_file(path, content.encode())
                written.append(path)
            else:
                path.unlink(missing_ok=True)
    return written


def in_words(value: Any) -> str:
    """A cell of a table.

    >>> [in_words(value) for value in (None, 0.123456, 1234567.8, 12, "sync")]
    ['–', '0.12346', '1,234,568', '12', 'sync']
    """
    if value is None:
        return NOTHING
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.5g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
