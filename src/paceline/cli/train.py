"""Commands that train: `train` and `resume`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from paceline.cli.help import command
from paceline.cli.options import PATH, address, given, new_run, number, one_of, option, setting
from paceline.cli.progress import print_notice, print_run, process_start, train_with_progress, watched
from paceline.config import DEVICES, EXCHANGES
from paceline.engines import ENGINES
from paceline.models.registry import MODELS
from paceline.parameters.optimizers import OPTIMIZERS


# No flag has a default here: without it, the recipe decides, else `RunConfig`, whose defaults the help shows.
@command(
    "paceline train --data data/clicks --pace async --workers 4",
    "paceline train recipes/a9a.toml --data data/a9a",
    "paceline train --data data/clicks --pace 4 --optimizer ftrl --l1 0.5",
    "paceline train --data data/clicks --engine ray --workers 4 --shards 2",
    "paceline train --data data/mnist --model softmax --workers 4 --epochs 10",
)
@click.argument("recipe", required=False, type=PATH, metavar="[RECIPE.toml]")
@option("--data", "DIR", "Dataset folder, made by `prepare` or `generate`.")
@option("--model", "NAME",
        f"{', '.join(MODELS)}, or PACKAGE.MODULE:FUNCTION for your own.  [default: logistic]")  # fmt: skip
@option("--pace", "PACE", "sync, async, or how many steps a worker may run ahead.  [default: sync]")
@number("--workers", "Threads or processes that train.  [default: 1]")
@number("--shards", "Processes that hold the model, with --engine ray.  [default: 1]")
@number("--batch-size", "Rows per worker per step.  [default: 100]")
@option("--optimizer", "NAME", f"{one_of(tuple(OPTIMIZERS))}.  [default: adagrad]")
@option("--learning-rate", "R", "Factor on the mean gradient of each update.  [default: 0.05]", float)
@option("--momentum", "M", "Momentum of sgd, for dense models.  [default: 0]", float)
@option("--l1", "X", "L1 penalty on the keys of each update, except the bias.  [default: 0]", float)
@option("--l2", "X", "L2 penalty, likewise; weight decay for dense models.  [default: 0]", float)
@number("--epochs", "Passes over the data; 0 for no limit.  [default: 1, or 0 with --steps or --seconds]")
@number("--train-rows", "Train on the first N rows only.  [default: all]")
@number("--steps", "Stop when the furthest worker has done N steps.  [default: no limit]")
@option("--seconds", "T", "Stop after T seconds of training.  [default: no limit]", float)
@option("--test-every", "ROWS", "Evaluate every ROWS rows and at the end.  [default: at the end]", int)
@option("--checkpoint-every", "SECONDS", "Seconds between checkpoints; 0 for none.  [default: 60]", float)
@option("--engine", "NAME", f"{one_of(tuple(ENGINES))}: threads here, or processes on a cluster.  [default: local]")
@address()
@option("--exchange", "NAME", f"{one_of(EXCHANGES)}: how PyTorch modules share gradients in sync.  [default: shard]")
@option("--device", "NAME", f"{one_of(DEVICES)}, for PyTorch modules.  [default: cpu]")
@number("--seed", "Random seed.  [default: 0]")
@new_run
@setting("Set any setting of a recipe; may be repeated.")
def train(recipe: Path | None, settings: tuple[str, ...], **flags: Any) -> None:
    """Train a model.

    Flags override the settings of the recipe, and --set overrides both.
    """
    from paceline.config import read_config

    print_run(train_with_progress(read_config(recipe, given(flags), settings), process_start()))


@command("paceline resume runs/20260101-120000-logistic-sync")
@click.argument("run")
@address("Ray cluster to join: auto or HOST:PORT.  [default: the same as before]")
def resume(run: str, address: str | None) -> None:
    """Continue a stopped run from its newest checkpoint."""
    from paceline.run import resume as resume_run

    print_run(watched("resume", lambda watch: resume_run(run, watch, process_start(), print_notice, address)))
