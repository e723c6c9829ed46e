"""What does a person see while something runs, and when it is done?

A live bar on a terminal; elsewhere plain lines, one every few seconds. Results go to standard output, everything else
goes to standard error.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from paceline.reports.measures import NOTHING, label_of
from paceline.telemetry.facts import Traits

PLAIN_LINE_SECONDS = 5.0
LIVE_SECONDS = 0.1
WIDE_COLUMNS = 100


class Meter(Protocol):
    """Shows how much of the work is done."""

    def show(self, share: float, text: str) -> None:
        """`share` of the work is done, 0 to 1; `text` gives details."""


class LiveMeter:
    """A bar that redraws itself on a terminal."""

    def __init__(self, progress: Progress, title: str) -> None:
        self._progress = progress
        self._task = progress.add_task(title, total=1.0, text="")
        self._last = 0.0

    def show(self, share: float, text: str) -> None:
        now = time.monotonic()
        if share >= 1 or now - self._last >= LIVE_SECONDS:
            self._last = now
            self._progress.update(self._task, completed=share, text=text)


class PlainMeter:
    """Lines for logs: one every few seconds."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._last = time.monotonic()
        self._first: tuple[float, float] | None = None

    def show(self, share: float, text: str) -> None:
        now = time.monotonic()
        # Time left counts from the first report: everything before it was start-up.
        began, share_then = self._first = self._first or (now, share)
        if now - self._last < PLAIN_LINE_SECONDS:
            return
        self._last = now
        remaining = f", {(now - began) * (1 - share) / (share - share_then):.0f} s left" if share > share_then else ""
        print(f"{self._title}: {100 * share:.0f} %, {text}{remaining}", file=sys.stderr, flush=True)


@contextmanager
def meter(title: str) -> Iterator[Meter]:
    """A live bar on a terminal, plain lines elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield PlainMeter(title)
        return

    # On a narrow terminal only the last column is cut, and there is no bar.
    def fixed() -> Column:
        return Column(no_wrap=True, overflow="ignore", min_width=5)

    columns = [
        TextColumn("{task.description}", table_column=fixed()),
        *([BarColumn(bar_width=20)] if console.width >= WIDE_COLUMNS else []),
        TextColumn("{task.percentage:>3.0f} %", table_column=fixed()),
        TimeRemainingColumn(compact=True, table_column=fixed()),
        TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
    ]
    with Progress(*columns, console=console, transient=True, expand=True) as progress:
        yield LiveMeter(progress, title)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on standard output; the first column is left-aligned, numbers are right-aligned."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if place == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 200, highlight=False).print(table)


def result_columns(traits: Traits) -> list[str]:
    """The columns of a table of runs whose model has these traits."""
    headline = label_of(f"test_{traits.headline}").removeprefix("test ")
    return ["run", "pace", "workers", "batch", f"{traits.input}/s", "seconds", "test loss", "error", headline]


def result_row(name: str, result: dict[str, Any], traits: Traits) -> list[str]:
    """One run's line of a table with `result_columns`."""
    test = result["test"]
    return [
        name,
        str(result["pace"]),
        str(result["workers"]),
        f"{result['batch_size']:,}",
        f"{result['rows_per_second']:,.0f}",
        f"{result['train_seconds']:.2f}",
        *(number(test.get(key), digits) for key, digits in (("loss", 5), ("error", 4), (traits.headline, 4))),
    ]


def number(value: float | None, digits: int) -> str:
    """A number for a table; a dash if there is none."""
    return NOTHING if value is None else f"{value:.{digits}f}"
