"""Commands that look inside: `top` into a model, `info` into a dataset."""

from __future__ import annotations

import json

import click

from paceline.cli.commands import as_json, code, command, number
from paceline.cli.completion import datasets, runs
from paceline.cli.progress import print_notice


@command("paceline top runs/my-run --count 50", "paceline top runs/my-run --json")
@click.argument("run", shell_complete=runs)
@number("--count", "How many features, for each class if there are several.", default=20)
@code
@as_json("Print one JSON object.")
def top(run: str, count: int, model: str, as_json: bool) -> None:
    """List the features with the largest weights.

    Weights are for values as the source has them; of factorization machines, they are the linear ones. The column rows
    says how many training rows have a feature.
    """
    from paceline.inside.top import top_features
    from paceline.reports.inside import print_top

    found = top_features(run, count, model)
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    print_top(found)
    for note in found["notes"]:
        print_notice(note)


@command("paceline info data/clicks", "paceline info data/clicks --json")
@click.argument("dataset", shell_complete=datasets)
@as_json("Print one JSON object.")
def info(dataset: str, as_json: bool) -> None:
    """Describe a dataset, and warn about what will hurt.

    Shows rows, features, labels, the loss and error of the best constant prediction, hot keys, and the memory that a
    linear model takes. Reads all rows.
    """
    from paceline.inside.info import info_of
    from paceline.reports.inside import print_info

    found = info_of(dataset)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        print_info(found)
