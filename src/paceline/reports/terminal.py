"""What does a person see when something is done? Tables and sentences on standard output."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.errors import printable
from paceline.reports.measures import NOTHING, glance, label_of, movement
from paceline.run_folder import RunFolder
from paceline.telemetry.facts import Traits

BITS = 8
UNRELIABLE = "unreliable"
PLAN_COLUMNS = ("pace", "workers", "shards", "links", "rows/s", "of now", "rows/s per machine", "limited by", "")


# Output that is not a terminal is as wide as the widest one that people use.
WIDTH, GAP = 120, 2
# A first column may be folded to this width; narrower ones are not.
LEAST_NAME = 24


def console_width() -> int:
    """The columns of the terminal; of a wide one if the output goes elsewhere."""
    return Console().width if sys.stdout.isatty() else WIDTH


def fitting(
    columns: Sequence[str], rows: Sequence[Sequence[str | Text]], width: int | None = None
) -> tuple[list[str], list[list[str | Text]], list[str]]:
    """As many of the first columns of a table as fit the terminal, and the names of those left out.

    >>> fitting(["run", "loss", "words"], [["a", "0.5", "x" * 60]], 40)
    (['run', 'loss'], [['a', '0.5']], ['words'])
    """
    width = width or console_width()
    sizes = [max(len(str(cell)) for cell in cells) for cells in zip(columns, *rows, strict=True)]
    left = width - min(sizes[0], max(LEAST_NAME, width // 4))
    kept, left_out = [0], list[int]()
    for place, size in enumerate(sizes[1:], 1):
        if size + GAP <= left:
            left -= size + GAP
            kept.append(place)
        else:
            left_out.append(place)
    return (
        [columns[place] for place in kept], [[row[place] for place in kept] for row in rows],
        [columns[place] for place in left_out],
    )  # fmt: skip


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str | Text]], *, wrap: bool = False) -> None:
    """A table on standard output; the first column is left-aligned, numbers are right-aligned. With `wrap`, the first
    column is folded where the table would be too wide.

    What a terminal would obey is escaped: cells may come from the files of a foreign run.
    """

    def fit(cell: str | Text) -> Text:
        return Text(printable(str(cell)), style="" if isinstance(cell, str) else cell.style)

    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(columns):
        folds = wrap and not place
        table.add_column(fit(name), justify="right" if place else "left", no_wrap=not folds,
                         overflow="fold" if folds else "ellipsis")  # fmt: skip
    for row in rows:
        table.add_row(*map(fit, row))
    width = None if sys.stdout.isatty() else WIDTH if wrap else 200
    Console(width=width, highlight=False).print(table)


def rows_shown(result: dict[str, Any]) -> str:
    """The rows whose metrics a table shows: test rows, else validation rows, else the loss in training.

    >>> rows_shown({"test": {}, "train": {"loss": 0.5}}), rows_shown({"test": {}})
    ('train', 'test')
    """
    return next((rows for rows in ("test", "validation", "train") if result.get(rows)), "test")


def result_columns(traits: Traits, rows: str = "test") -> list[str]:
    """The columns of a table of runs whose model has these traits, with the metrics on those rows."""
    first, *others = (label_of(f"{rows}_{name}") for name in _metrics_on(rows, traits))
    metrics = [first, *(label.removeprefix(f"{rows} ") for label in others)]
    return ["run", "pace", "workers", "batch", f"{traits.input}/s", "seconds", *metrics]


def result_row(name: str, result: dict[str, Any], traits: Traits, rows: str = "test") -> list[str]:
    """One run's line of a table with `result_columns`."""
    found = result.get(rows, {})
    return [
        name,
        str(result["pace"]),
        str(result["workers"]),
        f"{result['batch_size']:,}",
        f"{result['rows_per_second']:,.0f}",
        f"{result['train_seconds']:.2f}",
        *(number(found.get(name), 4 if place else 5) for place, name in enumerate(_metrics_on(rows, traits))),
    ]


def _metrics_on(rows: str, traits: Traits) -> tuple[str, ...]:
    """What is measured on those rows."""
    return ("loss", "baseline_loss") if rows == "train" else traits.metrics


def number(value: float | None, digits: int) -> str:
    """A number for a table; a dash if there is none."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def print_plan(plan: dict[str, Any]) -> None:
    """One line per prediction, the best of each pace marked, and the error of the replay."""
    now = plan["rows_per_second"]
    rows = [
        (
            str(one["pace"]),
            f"{one['workers']}",
            f"{one['shards']}" if plan["has_shards"] else NOTHING,
            f"{one['bandwidth'] * BITS / 1e9:g} Gbit/s" if one["bandwidth"] else "as recorded",
            _either(one["interval"], 1.0, ",.0f"),
            _either(one["interval"], now, ".2f") + "×",
            f"{one['rows_per_second_per_machine']:,.0f}",
            one["limit"],
            UNRELIABLE if not one["reliable"] else "best" if one["best"] else "",
        )
        for one in plan["predictions"]
    ]
    if plan["unreliable"]:
        print(printable(f"do not rely on these predictions: {plan['unreliable']}"))
    print_table(PLAN_COLUMNS, rows)
    print(f"from a run of {now:,.0f} rows/s; its own simulation is off by {plan['replay_error']:.0%}")
    if plan["note"]:
        print(printable(plan["note"]))


def _either(ends: Sequence[float], unit: float, form: str) -> str:
    """Both ends of a range, or its value if they are alike."""
    low, high = (f"{end / unit:{form}}" for end in ends)
    return low if low == high or ends[1] <= 1.05 * ends[0] else f"{low}–{high}"


def print_job(run: RunFolder) -> None:
    """The result of a matrix job, and what it cost."""
    result = run.result
    told = dict(glance(result))
    if "trace" in result:
        told["trace"] = repr(result["trace"])
    if "out" in result:
        print(f"product: {run.settings['out']} ({told.pop('rows')} × {result['columns']:,} {result['dtype']})")
    print_table(list(told), [list(told.values())])
    if moved := movement(result):
        print(moved)
    print(run.saved_diagnosis["sentence"])
    print(f"run: {run.path}")
