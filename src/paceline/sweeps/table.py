"""What are the results of a sweep? One table of all points, and a page that compares their runs."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any, NamedTuple

from paceline.errors import printable
from paceline.files import replace_file
from paceline.reports.commands import repeat, verb_of
from paceline.reports.compare import Comparison, PageParts, compare, write_comparison
from paceline.reports.measures import MEASURES, NOTHING, label_of
from paceline.reports.ranking import Ranking, rank, verdict_on
from paceline.reports.terminal import fitting, print_table
from paceline.run_folder import RunFolder
from paceline.sweeps.charts import against_settings
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


class Sweep(list[Outcome]):
    """The outcomes of a sweep's points, in their order. A notebook shows the page that compares their runs."""

    def __init__(self, outcomes: list[Outcome], out: Path) -> None:
        super().__init__(outcomes)
        self.out = out

    def _repr_html_(self) -> str | None:
        comparison = comparison_of(self, self.out)
        return comparison._repr_html_() if comparison else None


def print_outcomes(outcomes: list[Outcome]) -> None:
    """The runs on standard output, best first, which one was chosen and how, and the command that repeats it."""
    done = [outcome for outcome in outcomes if outcome.run and outcome.run.result]
    ranking = rank([outcome.run.result for outcome in done if outcome.run])
    ordered = [done[place] for place in ranking.order] + [one for one in outcomes if one not in done]
    columns, rows = summarise(ordered)
    # With what a constant prediction has, a loss means something.
    decided = [ranking.measure.name, ranking.measure.name.replace("_loss", "_baseline_loss")] if ranking.measure else []
    wanted = [*_varied(outcomes), *decided, *(name for name in columns if name in ON_TERMINAL)]
    kept = [columns.index(name) for name in dict.fromkeys(wanted) if name in columns]
    words = [[in_words(row[place]) for place in kept] for row in rows]
    titles, lines, left_out = fitting([label_of(columns[place]) for place in kept], words)
    print_table(titles, lines, wrap=True)
    if left_out:
        print(f"not shown, because the terminal is too narrow: {', '.join(left_out)}")
    if len(done) > 1 and (best := ordered[0].run):
        names = [outcome.point.name for outcome in ordered]
        told = verdict_on(names, [best.result, *(one.run.result for one in ordered[1 : len(done)] if one.run)],
                          ranking._replace(order=list(range(len(done)))))  # fmt: skip
        print(printable(f"{told} {chosen_on(ranking)}".replace("`", "").strip()))
        print(f"{verb_of(best)} like the best one: {printable(repeat(best))}")


def chosen_on(ranking: Ranking) -> str:
    """On which rows the best run was chosen, and what follows from that."""
    match ranking.rows:
        case "validation":
            return "Chosen on the validation rows, so that the test rows still tell how good it is."
        case "test":
            return (
                "Chosen on the test rows, because the data has no validation rows: its test loss is a little too good. "
                "`paceline prepare --validation-fraction 0.1` holds some out."
            )
    return ""


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
    page = out / "comparison.html"
    if comparison := comparison_of(outcomes, out):
        write_comparison(comparison, page)
        written.append(page)
    else:
        page.unlink(missing_ok=True)
    return written


def comparison_of(outcomes: list[Outcome], out: Path) -> Comparison | None:
    """The runs of a sweep side by side, with charts of what varied; None if there are fewer than two."""
    compared = [(outcome.point, outcome.run) for outcome in outcomes if outcome.run and outcome.run.result]
    if len(compared) < 2:
        return None
    runs = [run for _, run in compared]
    ranking = rank([run.result for run in runs])
    done = [(point.settings, run.result) for point, run in compared if run.result.get("status") == "done"]
    parts = PageParts(
        title=f"Sweep {out.resolve().name}: {len(runs)} runs",
        chosen=chosen_on(ranking),
        sections=against_settings([point for point, _ in done], [result for _, result in done], ranking.measure)
        if ranking.measure else [],
        failed={outcome.point.name: outcome.error for outcome in outcomes if outcome.error},
    )  # fmt: skip
    return compare(runs, [point.name for point, _ in compared], parts)


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
