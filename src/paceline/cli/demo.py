"""`demo`: click data, trained in sync and in async, side by side."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from paceline.cli.commands import PATH, command, number, option
from paceline.cli.data import generate_with_progress
from paceline.cli.progress import train_with_progress

FEATURES = 33_762_578
# The second one is the plain command.
PACES: tuple[dict[str, Any], ...] = ({"pace": "sync", "batch_size": 250}, {"pace": "async"})


@command("paceline demo", "paceline demo --rows 100000 --folder /tmp/demo")
@number("--rows", "Training rows to generate.", default=1_000_000)
@option("--folder", "DIR", "Folder for the data and the runs. Existing data is reused.", PATH, default=Path("demo"))
def demo(rows: int, folder: Path) -> None:
    """Generate click data, train on it in sync and async, and compare."""
    from paceline.config import read_config
    from paceline.data.sparse.dataset import SparseDataset
    from paceline.data.synthetic import generate_clicks
    from paceline.files import free_path
    from paceline.reports.compare import write_comparison
    from paceline.reports.terminal import print_table, result_columns, result_row

    data = folder / f"clicks-{rows}"
    if not (data / "manifest.json").exists():
        click.echo(f"generating {rows:,} rows of clicks with {FEATURES:,} features …", err=True)
        generate_with_progress(generate_clicks, out=data, rows=rows, test_rows=None, features=FEATURES, seed=0)
    info = SparseDataset(data).split("train")
    click.echo(f"{data}: {info.rows:,} training rows, {info.nonzeros / info.rows:.0f} nonzeros per row", err=True)
    runs = []
    for settings in PACES:
        flags = {"data": data, "run": free_path(folder / f"run-{settings['pace']}"), **settings}
        runs.append(train_with_progress(read_config(None, flags), time.time()))
    traits = runs[0].facts.traits
    print_table(result_columns(traits), [result_row(run.path.name, run.result, traits) for run in runs])
    click.echo("\n".join(f"run: {run.path}" for run in runs))
    page = folder / "comparison.html"
    write_comparison(runs, page)
    click.echo(f"comparison: {page}")
