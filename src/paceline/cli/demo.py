"""`demo`: click data, trained in sync and in async, side by side."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.commands import PATH, command, number, option
from paceline.cli.data import generate_with_progress
from paceline.cli.progress import train_with_progress
from paceline.errors import printable

if TYPE_CHECKING:
    from paceline.reports.compare import PageParts
    from paceline.run_folder import RunFolder

FEATURES = 33_762_578
# Long enough for a diagnosis, and few enough passes that nothing is overfitted.
SECONDS, EPOCHS = 3, 10
# Enough for a curve, and few enough that the demo stays quick.
EVALUATIONS_PER_EPOCH = 4
# The second one is the plain command.
PACES: tuple[dict[str, Any], ...] = ({"pace": "sync", "batch_size": 250}, {"pace": "async"})
LONGER = 5 * SECONDS
MOST_ADVICE = 2


@command("paceline demo", "paceline demo --rows 100000 --folder /tmp/demo")
@number("--rows", "Training rows to generate.", default=1_000_000)
@option("--folder", "DIR", "Folder for the data and the runs. Existing data is reused.", PATH, default=Path("demo"))
def demo(rows: int, folder: Path) -> None:
    """Generate click data, train on it in sync and async, and compare."""
    from paceline.config import read_config
    from paceline.data.sparse.dataset import SparseDataset
    from paceline.data.synthetic import generate_clicks
    from paceline.diagnosis.explain import ensure_diagnosis
    from paceline.files import free_path
    from paceline.reports.compare import compare, verdicts_of, write_comparison
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
            "data": data, "run": free_path(folder / f"run-{settings['pace']}"), "seconds": SECONDS, "epochs": EPOCHS,
            "test_every": -(-info.rows // EVALUATIONS_PER_EPOCH), **settings,
        }  # fmt: skip
        runs.append(train_with_progress(read_config(None, flags), time.time()))
        ensure_diagnosis(runs[-1])
    traits = runs[0].facts.traits
    print_table(result_columns(traits), [result_row(run.path.name, run.result, traits) for run in runs])
    following = what_next(compare(runs).runs)
    told, page = compare(runs, parts=story(info.rows, following)), folder / "comparison.html"
    write_comparison(told, page)
    click.echo(printable(told.sentence.replace("`", "")))
    for run in runs:
        for sentence in verdicts_of(run):
            click.echo(printable(f"{run.path.name}: {sentence}".replace("`", "")))
    click.echo("\n".join(f"run: {run.path}" for run in runs))
    click.echo("next:\n" + "\n".join(f"  {command}" for command, _ in following))
    click.echo(f"comparison: {page}")


def story(rows: int, following: Sequence[tuple[str, str]]) -> PageParts:
    """What the page says besides the comparison: the question, how long each run trained, and what to try next."""
    from paceline.reports.compare import PageParts
    from paceline.reports.layout import command_line, note, prose, section

    count = "A million" if rows == 1_000_000 else f"{rows:,}"
    parts = [part for command, words in following for part in (note(*prose(f"{words}:")), command_line(command))]
    return PageParts(
        title=f"{count} clicks: sync or async?",
        lead=f"Each run trained on the same {rows:,} rows for {SECONDS} seconds, or until it had passed over them "
        f"{EPOCHS} times, and was tested while it trained.",
        after=[section("What to try next", *parts)],
    )


def what_next(runs: Sequence[RunFolder]) -> list[tuple[str, str]]:
    """What to try after the demo: commands, and why. `runs` are best first."""
    best = runs[0].path
    return [
        *_longer(runs[0]),
        *(advice for run in runs for advice in _advised(run)),
        *[again for run in runs for again in _clearer(run)][:1],
        (f"paceline report {quote(str(best))}", f"All about `{best.name}`: where its time went, nodes, single steps"),
        ("paceline prepare mine.csv --out data/mine", "The same with data of your own"),
    ]


def _longer(run: RunFolder) -> Iterator[tuple[str, str]]:
    """A run that was still improving, for longer."""
    from paceline.reports.quality import IMPROVING, quality_of

    if (quality := quality_of(run.metrics)) and quality.state == IMPROVING:
        yield _again(run, f"--seconds {LONGER} --epochs 0"), f"`{run.path.name}` was still improving: train for longer"


def _advised(run: RunFolder) -> Iterator[tuple[str, str]]:
    """What the diagnosis of a run advises."""
    for one in run.saved_diagnosis.get("advice", [])[:MOST_ADVICE]:
        # Without bound, a gain is null.
        gains = dict.fromkeys(f"{gain:.1f}" if gain else "∞" for gain in one["interval"])
        told = f"`{run.path.name}` would be {'–'.join(gains)}× as fast with {one['try']}, says its diagnosis"
        yield _again(run, one["flags"]), told


def _clearer(run: RunFolder) -> Iterator[tuple[str, str]]:
    """A run that shows what limits it, if this one does not."""
    name, diagnosis = run.path.name, run.saved_diagnosis
    if seconds := diagnosis.get("needed_seconds"):
        yield _again(run, f"--seconds {seconds:.0f} --epochs 0"), f"Long enough to tell what limits `{name}`"
    elif diagnosis.get("taken_cores"):
        yield _again(run, ""), f"`{name}` again, for when no other program needs the processor"


def _again(run: RunFolder, flags: str) -> str:
    """The command that repeats a run with other flags, in a folder named by them."""
    from paceline.reports.commands import repeat

    added = re.sub("[^a-z0-9]+", "-", flags).strip("-") or "again"
    return repeat(run, flags, f"{run.path}-{added}")
