"""`sweep`: many runs from one recipe."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.help import command
from paceline.cli.options import PATH, address, given, option, setting
from paceline.cli.progress import job_with_progress, print_notice, train_with_progress, watched
from paceline.errors import RunError
from paceline.settings import RunConfig

if TYPE_CHECKING:
    from paceline.matrices.settings import TraceSettings
    from paceline.run_folder import RunFolder


@command(
    "paceline sweep recipes/clicks-sync-async.toml",
    "paceline sweep recipes/mnist-batch-size.toml --data data/mnist",
)
@click.argument("recipe", type=PATH, metavar="RECIPE.toml")
@option("--data", "DIR", "Dataset folder, instead of the recipe's.")
@address("Ray cluster to join: auto or HOST:PORT.  [default: as the recipe says]")
@option("--out", "DIR", "Folder for the runs.  [default: runs/RECIPE]", PATH)
@setting("Set any setting, for all runs; may be repeated.")
def sweep(recipe: Path, out: Path | None, settings: tuple[str, ...], **flags: Any) -> None:
    """Run every combination of settings in a recipe and compare.

    If a sweep is stopped, the same command continues it.
    """
    from paceline.reports.terminal import print_table
    from paceline.sweep.points import read_sweep
    from paceline.sweep.run import Runner, run_sweep
    from paceline.sweep.table import in_short

    points = read_sweep(recipe, given(flags), settings)
    runner = Runner(start, carry_on, lambda text: click.echo(text, err=True))
    outcomes, written = run_sweep(points, out or Path("runs") / recipe.stem, runner)
    print_table(*in_short(outcomes))
    for path in written:
        click.echo(f"{path.stem}: {path}")
    failed = sum(1 for outcome in outcomes if outcome.error)
    if failed:
        raise RunError(f"{failed} of {len(points)} points failed", "run the same command again to retry them")


def start(config: RunConfig | TraceSettings) -> RunFolder:
    """Begin a point of the sweep."""
    from paceline.matrices.jobs import run_trace

    if isinstance(config, RunConfig):
        return train_with_progress(config, time.time())
    return job_with_progress(config, lambda watch: run_trace(config, watch, print_notice))


def carry_on(run: RunFolder, config: RunConfig) -> RunFolder:
    """Continue a point that was stopped."""
    from paceline.run import resume

    return watched(
        "resume", lambda watch: resume(run.path, watch, time.time(), print_notice, config.address, config.data)
    )
