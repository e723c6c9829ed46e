"""Commands that use a trained model: `evaluate`, `predict` and `export`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from paceline.cli.commands import as_json, code, command, number, option
from paceline.cli.completion import any_of, datasets, files, runs
from paceline.cli.progress import print_notice
from paceline.config import CHOICES
from paceline.data.prepare_settings import FORMATS
from paceline.errors import UsageError, one_of

FORMAT_CHOICES = ("auto", *FORMATS)
data = option("--data", "DIR", "Dataset folder.", complete=datasets, required=True)
split = option(
    "--split", None, "Which rows.  [default: test if any, else train]", click.Choice(["train", "validation", "test"])
)
device = option(
    "--device", "NAME", f"{one_of(CHOICES['device'])}, for `linear`, `fm` and PyTorch modules.",
    complete=any_of(CHOICES["device"]), default="cpu",
)  # fmt: skip


@command("paceline evaluate runs/my-run --data data/clicks")
@click.argument("run", shell_complete=runs)
@data
@split
@device
@code
@as_json("Print one line of JSON.")
def evaluate(run: str, data: str, split: Any, device: str, model: str, as_json: bool) -> None:
    """Measure the quality of a model on a dataset.

    Prints the loss, that of the best constant prediction and, depending on the labels, error and AUC (two classes),
    error, macro F1 and accuracy (several classes), or MAE, R² and RMSE (numbers).
    """
    import json

    from paceline.predictions import evaluate_model
    from paceline.reports.terminal import number, print_table

    rows, quality = evaluate_model(run, data, split, model, device)
    if as_json:
        click.echo(json.dumps({"rows": rows, **quality}))
    else:
        print_table(("rows", *quality), [(f"{rows:,}", *(number(value, 5) for value in quality.values()))])


@command(
    "paceline predict runs/my-run rows.tsv.gz --out scores.csv",
    "zcat rows.tsv.gz | paceline predict runs/my-run - --out -",
    "paceline predict runs/my-run day.parquet --id customer --out scores.csv",
    "paceline predict runs/my-run --data data/clicks --out scores.parquet",
)
@click.argument("run", shell_complete=runs)
@click.argument("sources", nargs=-1, metavar="[SOURCE...]", shell_complete=files)
@option("--data", "DIR", "Dataset folder, instead of a SOURCE.", complete=datasets)
@option("--out", "FILE", "File to write: .parquet or .csv, or - for CSV to standard output.", required=True)
@option("--id", "COLUMN", "Column of Parquet, Arrow and CSV files to write instead of file and row.", default="")
@option("--format", "NAME", f"{one_of(FORMAT_CHOICES)}.", click.Choice(FORMAT_CHOICES), default="auto")
@number("--skip-bad-rows", "Skip up to N rows that cannot be parsed.", default=0)
@split
@device
@code
def predict(run: str, sources: tuple[str, ...], data: str | None, out: str, split: Any, device: str, model: str,
            **settings: Any) -> None:  # fmt: skip
    """Write predictions for raw rows, or for the rows of a dataset.

    A SOURCE is a file, a folder, a glob in quotes, a URL, or - for standard input. Rows are read as those that the
    model was trained on, and need no labels. The columns are file, row (or the --id) and probability.

    For a dataset, they are row, label and probability; rows are test rows, or --split. If two classes have names, a
    line says of which one the probability is.

    If there are several classes, the column class is the most likely one, and probability is its probability. If labels
    are numbers, the column prediction replaces probability.
    """
    from paceline.predictions import write_predictions
    from paceline.raw_predictions import write_raw_predictions

    check_what(sources, data, split, settings)
    if data is not None:
        rows, _, notes = write_predictions(run, data, out, split, model, device)
    else:
        rows, _, notes = write_raw_predictions(run, sources, out, settings, model, device)
    for note in notes:
        print_notice(note)
    click.echo(f"{rows:,} rows written to {'standard output' if out == '-' else out}", err=out == "-")


def check_what(sources: tuple[str, ...], data: str | None, split: str | None, settings: dict[str, Any]) -> None:
    """Raise unless either raw rows or a dataset is to be scored, with settings that are for it."""
    from paceline.data.blocks.manifests import holds_dataset
    from paceline.prediction_files import refuse_raw_settings, refuse_split

    if (data is not None) == bool(sources):
        found = "both a SOURCE and --data are given" if sources else "neither a SOURCE nor --data is given"
        raise UsageError(found, "name files of raw rows, or a dataset with --data DIR")
    if sources:
        for source in sources:
            if Path(source).is_dir() and holds_dataset(source):
                raise UsageError(f"`{source}` is a dataset", f"--data {source}")
        refuse_split(split)
    else:
        refuse_raw_settings(settings, "a dataset has been prepared")


@command(
    "paceline export runs/my-run --to onnx --out model.onnx",
    "paceline export runs/my-run --to mlflow --out model",
    "paceline export runs/my-run --to text --out weights.tsv",
)
@click.argument("run", shell_complete=runs)
@option("--to", "TOOL", "onnx, mlflow, text or vw (Vowpal Wabbit).", complete=any_of(("onnx", "mlflow", "text", "vw")),
        required=True)  # fmt: skip
@option("--out", "PATH", "File to write; for mlflow, a folder.", required=True)
@code
def export(run: str, to: str, out: str, model: str) -> None:
    """Write a model in the form of another tool.

    onnx is a file for ONNX Runtime and others. mlflow is a folder that MLflow loads and serves. text is a table of
    weights to read, the largest first. vw is the text that `vw --readable_model` writes.
    """
    from paceline.exports.export import export_model

    click.echo(f"{to}: {export_model(run, to, out, model)}")
