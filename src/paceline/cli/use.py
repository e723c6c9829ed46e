"""Commands that use a trained model: `evaluate` and `predict`."""

from __future__ import annotations

from typing import Any

import click

from paceline.cli.commands import as_json, code, command, option
from paceline.cli.completion import datasets, runs

data = option("--data", "DIR", "Dataset folder.", complete=datasets, required=True)
split = option(
    "--split", None, "Which rows.  [default: test if any, else train]", click.Choice(["train", "validation", "test"])
)


@command("paceline evaluate runs/my-run --data data/clicks")
@click.argument("run", shell_complete=runs)
@data
@split
@code
@as_json("Print one line of JSON.")
def evaluate(run: str, data: str, split: Any, model: str, as_json: bool) -> None:
    """Measure the quality of a model on a dataset.

    Prints the loss, that of the best constant prediction and, depending on the labels, error and AUC (two classes),
    error, macro F1 and accuracy (several classes), or MAE, R² and RMSE (numbers).
    """
    import json

    from paceline.predictions import evaluate_model
    from paceline.reports.terminal import number, print_table

    rows, quality = evaluate_model(run, data, split, model)
    if as_json:
        click.echo(json.dumps({"rows": rows, **quality}))
    else:
        print_table(("rows", *quality), [(f"{rows:,}", *(number(value, 5) for value in quality.values()))])


@command("paceline predict runs/my-run --data data/clicks --out scores.parquet")
@click.argument("run", shell_complete=runs)
@data
@option("--out", "FILE", "File to write: .parquet or .csv.", required=True)
@split
@code
def predict(run: str, data: str, out: str, split: Any, model: str) -> None:
    """Write predictions for the rows of a dataset: test rows, or --split.

    The columns are row, label and probability. If there are several classes, the column class is the most likely one,
    and probability is its probability. If labels are numbers, the column prediction replaces probability.
    """
    from paceline.predictions import write_predictions

    click.echo(f"{write_predictions(run, data, out, split, model):,} rows written to {out}")
