"""`demo`: click data, trained in sync and in async, side by side."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.commands import PATH, command, number, option
from paceline.cli.data import generate_with_progress
from paceline.cli.progress import train_with_progress
from paceline.errors import printable

if TYPE_CHECKING:
    from paceline.reports.markup import Markup

FEATURES = 33_762_578
# Enough evaluations for a curve, and few enough that the demo stays quick.
NUM_EVALUATIONS = 12
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
    from paceline.reports.quality import quality_of
    from paceline.reports.terminal import print_table, result_columns, result_row

    data = folder / f"clicks-{rows}"
    if not (data / "manifest.json").exists():
        click.echo(f"generating {rows:,} rows of clicks with {FEATURES:,} features …", err=True)
        generate_with_progress(generate_clicks, out=data, rows=rows, test_rows=None, features=FEATURES, seed=0)
    info = SparseDataset(data).split("train")
    click.echo(f"{data}: {info.rows:,} training rows, {info.nonzeros / info.rows:.0f} nonzeros per row", err=True)
    runs = []
    for settings in PACES:
        flags = {
            "data": data, "run": free_path(folder / f"run-{settings['pace']}"),
            "test_every": max(1, info.rows // NUM_EVALUATIONS), **settings,
        }  # fmt: skip
        runs.append(train_with_progress(read_config(None, flags), time.time()))
    traits = runs[0].facts.traits
    print_table(result_columns(traits), [result_row(run.path.name, run.result, traits) for run in runs])
    page, following = folder / "comparison.html", what_next(data, folder)
    title = "One pass over a million clicks" if rows == 1_000_000 else f"One pass over {rows:,} clicks"
    told = write_comparison(runs, page, title=f"{title}: sync or async?", after=next_section(following))
    click.echo(printable(told.sentence.replace("`", "")))
    for run in runs:
        if quality := quality_of(run.metrics):
            click.echo(f"{run.path.name}: {quality.sentence}")
    click.echo("\n".join(f"run: {run.path}" for run in runs))
    click.echo("next:\n" + "\n".join(f"  {command}" for command, _ in following))
    click.echo(f"comparison: {page}")


def what_next(data: Path, folder: Path) -> list[tuple[str, str]]:
    """What to try after the demo: commands, and what they show."""
    place, run, better = (quote(str(path)) for path in (data, folder / "run-sync", folder / "more-epochs"))
    return [
        (f"paceline diagnose {run}", "what limits the run in sync, in numbers"),
        (f"paceline report {run}", "the whole page about it: curves, phases, processors, single steps"),
        (f"paceline train --data {place} --epochs 3 --run {better}", "more passes over the same rows"),
        ("paceline prepare mine.csv --out data/mine", "the same with data of your own"),
    ]


def next_section(following: Sequence[tuple[str, str]]) -> list[Markup]:
    """The last part of the page."""
    from paceline.reports.layout import command_line, note, section

    parts = [
        part
        for command, words in following
        for part in (note(f"{words[:1].upper()}{words[1:]}:"), command_line(command))
    ]
    return [section("What to try next", *parts)]
