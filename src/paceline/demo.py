"""The main job in one command: click data, trained in sync and in async, side by side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from paceline.config import RunConfig, read_config
from paceline.data.sparse.dataset import Dataset
from paceline.data.synthetic import generate_clicks
from paceline.reports.compare import write_comparison
from paceline.reports.terminal import RESULT_COLUMNS, meter, print_table, result_row

FEATURES = 33_762_578
# One step of sync takes the rows of all workers, so its batches are small; async learns from single rows.
SYNC = {"pace": "sync", "batch_size": 250, "optimizer": "adagrad", "learning_rate": 0.05}
ASYNC = {"pace": "async", "batch_size": 1, "optimizer": "adagrad", "learning_rate": 0.05}


def run_demo(rows: int, folder: Path, train: Callable[[RunConfig], Any]) -> None:
    """Make the data unless it is there, train both ways with 4 workers, print how they compare, and write the page."""
    data = folder / f"clicks-{rows}"
    if not (data / "manifest.json").exists():
        click.echo(f"making {rows:,} click rows over {FEATURES:,} features …", err=True)
        with meter("generate") as bar:
            generate_clicks(
                data, rows=rows, features=FEATURES, test_rows=max(1, rows // 10), seed=0,
                progress=lambda done: bar.show(done / (1.1 * rows), f"{done:,} rows"),
            )  # fmt: skip
    info = Dataset(data).split("train")
    click.echo(f"{data}: {info.rows:,} training rows, {info.nonzeros / info.rows:.0f} nonzeros each", err=True)
    runs = []
    for settings in (SYNC, ASYNC):
        click.echo(f"training in {settings['pace']} with 4 workers …", err=True)
        flags = {"data": str(data), "workers": 4, "run": _free(folder / f"run-{settings['pace']}"), **settings}
        runs.append(train(read_config(None, flags)))
    print_table(RESULT_COLUMNS, [result_row(run.path.name, run.result) for run in runs])
    for run in runs:
        click.echo(f"run: {run.path}")
    page = folder / "comparison.html"
    write_comparison(runs, page)
    click.echo(f"comparison: {page}")


def _free(path: Path) -> str:
    """`path`, or the first of `path-2`, `path-3`, … that does not exist."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return str(free)
