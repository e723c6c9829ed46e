"""What does a person see while something runs? A live bar on a terminal and in a notebook; elsewhere plain lines."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

    from paceline.data.prepare_settings import PrepareProgress

PLAIN_LINE_SECONDS = 5.0
LIVE_SECONDS = 0.1
NOTEBOOK_SECONDS = 0.25
WIDE_COLUMNS = 100


class LiveMeter:
    """A bar that redraws itself on a terminal."""

    def __init__(self, progress: Progress, title: str) -> None:
        self._progress = progress
        self._task = progress.add_task(title, total=1.0, text="")
        self._last = 0.0

    def show(self, share: float, text: str) -> None:
        """`share` of the work is done, 0 to 1; `text` gives details."""
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
        """As `LiveMeter.show`."""
        now = time.monotonic()
        # Time left counts from the first report: everything before it was start-up.
        began, share_then = self._first = self._first or (now, share)
        if now - self._last >= PLAIN_LINE_SECONDS:
            self._last = now
            left = f", {(now - began) * (1 - share) / (share - share_then):.0f} s left" if share > share_then else ""
            print(f"{self._title}: {share:.0%}, {text}{left}", file=sys.stderr, flush=True)


class NotebookMeter:
    """A bar below a notebook's cell, which stays there when the work is done."""

    def __init__(self, display: Any, title: str) -> None:
        self._title = title
        self._html = display.HTML
        self._last = 0.0
        self._shown = display.display(self._page(0.0, ""), display_id=True)

    def show(self, share: float, text: str) -> None:
        """As `LiveMeter.show`."""
        now = time.monotonic()
        if share >= 1 or now - self._last >= NOTEBOOK_SECONDS:
            self._last = now
            self._shown.update(self._page(share, text))

    def _page(self, share: float, text: str) -> Any:
        words = html.escape(f"{self._title}: {share:.0%}{', ' if text else ''}{text}")
        return self._html(f'<progress value="{share:.3f}" max="1"></progress> <span>{words}</span>')


def notebook_display() -> Any:
    """IPython's module that shows things below a cell; None outside of notebooks."""
    python = sys.modules.get("IPython")
    shell = python.get_ipython() if python is not None else None
    if getattr(shell, "kernel", None) is None:
        return None
    from importlib import import_module

    return import_module("IPython.display")


@contextmanager
def meter(title: str) -> Iterator[LiveMeter | NotebookMeter | PlainMeter]:
    """A live bar on a terminal and in a notebook, plain lines elsewhere."""
    if (display := notebook_display()) is not None:
        yield NotebookMeter(display, title)
        return
    if not sys.stderr.isatty():
        yield PlainMeter(title)
        return
    # Not at the top: logs do not need it, and it would make the start of a run slower.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    console = Console(stderr=True)

    # On a narrow terminal only the last column is cut, and there is no bar.
    def fixed() -> Column:
        return Column(no_wrap=True, overflow="ignore", min_width=5)

    columns = [
        TextColumn("{task.description}", table_column=fixed()),
        *([BarColumn(bar_width=20)] if console.width >= WIDE_COLUMNS else []),
        TextColumn("{task.percentage:>3.0f}%", table_column=fixed()),
        TimeRemainingColumn(compact=True, table_column=fixed()),
        TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
    ]
    with Progress(*columns, console=console, transient=True, expand=True) as progress:
        yield LiveMeter(progress, title)


@contextmanager
def prepare_meter() -> Iterator[Callable[[PrepareProgress], None]]:
    """A meter of what `prepare` has read."""
    began = time.perf_counter()
    with meter("prepare") as bar:

        def show(at: PrepareProgress) -> None:
            speed = at.bytes_read / 1e6 / max(1e-9, time.perf_counter() - began)
            share = at.bytes_read / at.bytes_total if at.bytes_total else 0.0
            bar.show(min(share, 1.0), f"{at.rows:,} rows, {speed:.0f} MB/s")

        yield show
