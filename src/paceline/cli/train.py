"""Commands that train: `train`, `resume` and `sweep`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.commands import PATH, address, code, command, flag, given, new_run, number, option, setting
from paceline.cli.completion import any_of, datasets, runs
from paceline.cli.progress import (
    job_with_progress,
    print_notice,
    print_run,
    process_start,
    train_with_progress,
    watched,
)
from paceline.config import CHOICES
from paceline.errors import RunError, one_of
from paceline.models.registry import MODELS
from paceline.settings import RunConfig

if TYPE_CHECKING:
    from paceline.matrices.settings import TraceSettings
    from paceline.run_folder import RunFolder


# No flag has a default here: without it, the recipe decides, else `defaults.py` or `RunConfig`, as the help shows.
@command(
    "paceline train --data data/clicks",
    "paceline train --data data/clicks --pace sync --workers 4 --batch-size 250",
    "paceline train recipes/a9a.toml --data data/a9a",
    "paceline train --data data/clicks --pace 4 --optimizer ftrl --l1 0.5",
    "paceline train --data data/clicks --engine ray --workers 4 --shards 2",
    "paceline train --data data/clicks --model fm --dim 16",
    "paceline train --data data/mnist --model softmax --workers 4 --epochs 10",
    "paceline train --from runs/monday --data data/tuesday --run runs/tuesday",
)
@click.argument("recipe", required=False, type=PATH, metavar="[RECIPE.toml]")
@option("--data", "DIR", "Dataset folder, made by `prepare` or `generate`.", complete=datasets)
@option("--from", "RUN", "Go on with the model of this run, its optimizer's state and its settings.",
        also=("start_from",), complete=runs)  # fmt: skip
@option("--model", "NAME",
        f"{', '.join(MODELS)}, or PACKAGE.MODULE:FUNCTION for your own.  [default: linear]",
        complete=any_of(MODELS))  # fmt: skip
@option("--loss", "NAME", f"{one_of(CHOICES['loss.name'])}.  [default: by the labels]",
        complete=any_of(CHOICES["loss.name"]))  # fmt: skip
@option("--class-weight", "balanced", "Let all classes count the same in training.  [default: rows do]",
        complete=any_of(CHOICES["loss.class_weight"]))  # fmt: skip
@option("--pace", "PACE", "sync, async, or how many steps a worker may run ahead.  [default: async; sync for PyTorch]",
        complete=any_of(["sync", "async"]))  # fmt: skip
@number("--workers", "Threads or processes that train.  [default: one per free core; 1 for PyTorch]")
@number("--shards", "Processes that hold the model, with --engine ray.  [default: 1]")
@number("--batch-size", "Rows per worker per step.  [default: by model, pace and engine]")
@number("--dim", "Factors per key of a factorization machine, 1 to 64.  [default: 8]")
@option("--optimizer", "NAME", f"{one_of(CHOICES['optimizer.name'])}.  [default: adagrad]",
        complete=any_of(CHOICES["optimizer.name"]))  # fmt: skip
@option("--learning-rate", "R", "Factor on the mean gradient of each update.  [default: 0.05]", float, also=("--lr",))
@option("--momentum", "M", "Momentum of sgd, for dense models.  [default: 0]", float)
@option("--l1", "X", "L1 penalty on the keys of each update, except the bias.  [default: 0]", float)
@option("--l2", "X", "L2 penalty, likewise; weight decay for dense models.  [default: 0]", float)
@number("--epochs", "Passes over the data; 0 for no limit.  [default: 1, more for small data; 0 with --steps]")
@number("--train-rows", "Train on the first N rows only.  [default: all]")
@number("--steps", "Stop when the furthest worker has done N steps.  [default: no limit]")
@option("--seconds", "T", "Stop after T seconds of training.  [default: no limit]", float)
@option("--test-every", "ROWS", "Evaluate every ROWS rows and at the end.  [default: at the end]", int)
@number("--early-stopping", "Stop after N evaluations without a lower validation loss; 0 for never.  [default: 0]")
@option("--checkpoint-every", "SECONDS", "Seconds between checkpoints; 0 for none.  [default: 60]", float)
@option("--engine", "NAME", f"{one_of(CHOICES['engine'])}: threads here, or processes on a cluster.  [default: local]",
        complete=any_of(CHOICES["engine"]))  # fmt: skip
@address()
@option("--exchange", "NAME", f"{one_of(CHOICES['exchange'])}, for PyTorch modules in sync.  [default: shard]",
        complete=any_of(CHOICES["exchange"]))  # fmt: skip
@option("--device", "NAME", f"{one_of(CHOICES['device'])}, for `linear`, `fm` and PyTorch modules.  [default: cpu]",
        complete=any_of(CHOICES["device"]))  # fmt: skip
@number("--seed", "Random seed.  [default: 0]")
@flag("--no-shuffle", "shuffle", "Train on rows in the order of the data.  [default: shuffled]", value=False)
@new_run
@option("--track", "mlflow", "Log the run to MLflow, too.  [default: do not]", complete=any_of(["mlflow"]))
@setting("Set any setting of a recipe; may be repeated.")
def train(recipe: Path | None, settings: tuple[str, ...], **flags: Any) -> None:
    """Train a model.

    Flags override the settings of the recipe, and --set overrides both.
    """
    from paceline.config import read_config

    print_run(train_with_progress(read_config(recipe, given(flags), settings), process_start()))


@command(
    "paceline resume runs/20260101-120000-linear-sync",
    "paceline resume runs/my-run --model mine.nets:build",
)
@click.argument("run", shell_complete=runs)
@address("Ray cluster to join: auto or HOST:PORT.  [default: the same as before]")
@code
def resume(run: str, address: str | None, model: str) -> None:
    """Continue a stopped run from its newest checkpoint."""
    from paceline.run import resume as resume_run

    began = process_start()
    print_run(watched("resume", lambda watch: resume_run(run, watch, began, print_notice, address, model=model)))


@command(
    "paceline sweep recipes/clicks-sync-async.toml",
    "paceline sweep recipes/mnist-batch-size.toml --data data/mnist",
)
@click.argument("recipe", type=PATH, metavar="RECIPE.toml")
@option("--data", "DIR", "Dataset folder, instead of the recipe's.", complete=datasets)
@address("Ray cluster to join: auto or HOST:PORT.  [default: as the recipe says]")
@option("--out", "DIR", "Folder for the runs.  [default: runs/RECIPE]", PATH)
@setting("Set any setting, for all runs; may be repeated.")
def sweep(recipe: Path, out: Path | None, settings: tuple[str, ...], **flags: Any) -> None:
    """Run every combination of settings in a recipe and compare.

    Prints which run is best, by its loss on validation rows if the data has some, and the command that repeats it.
    If a sweep is stopped, the same command continues it.
    """
    from paceline.sweeps.points import read_sweep
    from paceline.sweeps.run import Runner, run_sweep
    from paceline.sweeps.table import print_outcomes

    points = read_sweep(recipe, given(flags), settings)
    runner = Runner(start, carry_on, lambda text: click.echo(text, err=True))
    outcomes, written = run_sweep(points, out or Path("runs") / recipe.stem, runner)
    print_outcomes(outcomes)
    for path in written:
        click.echo(f"{path.stem}: {path}")
    if failed := sum(1 for outcome in outcomes if outcome.error):
        raise RunError(f"{failed} of {len(points)} points failed", "run the same command again to retry them")


def start(config: RunConfig | TraceSettings) -> RunFolder:
    """Begin a point of the sweep."""
    if isinstance(config, RunConfig):
        return train_with_progress(config, time.time())
    from paceline.matrices.jobs import run_trace

    return job_with_progress(config, lambda watch: run_trace(config, watch, print_notice))


def carry_on(run: RunFolder, config: RunConfig) -> RunFolder:
    """Continue a point that was stopped."""
    from paceline.run import resume

    return watched(
        "resume",
        lambda watch: resume(run.path, watch, time.time(), print_notice, config.address, config.data, config.model),
    )
