"""Commands that use a trained model: `evaluate`, `predict` and `export`."""

from __future__ import annotations

from typing import Any

import click

from paceline.cli.commands import as_json, code, command, option

data = option("--data", "DIR", "Dataset folder.", required=True)
split = option(
    "--split", None, "Which rows.  [default: test if any, else train]", click.Choice(["train", "validation", "test"])
)


@command("paceline evaluate runs/my-run --data data/clicks")
@click.argument("run")
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
@click.argument("run")
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


@command(
    "paceline export runs/my-run --to onnx --out model.onnx",
    "paceline export runs/my-run --to mlflow --out model",
    "paceline export runs/my-run --to text --out weights.tsv",
)
@click.argument("run")
@option("--to", "TOOL", "onnx, mlflow, text or vw (Vowpal Wabbit).", required=True)
@option("--out", "PATH", "File to write; for mlflow, a folder.", required=True)
@code
def export(run: str, to: str, out: str, model: str) -> None:
    """Write a model in the form of another tool.

    onnx is a file for ONNX Runtime and others. mlflow is a folder that MLflow loads and serves. text is a table of
    weights to read, the largest first. vw is the text that `vw --readable_model` writes.
    """
    from paceline.exports.export import export_model

    click.echo(f"{to}: {export_model(run, to, out, model)}")
