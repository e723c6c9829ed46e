"""Commands that make datasets: `generate` and `prepare`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.commands import Command, CommandGroup, command, number, option
from paceline.cli.completion import files
from paceline.cli.progress import print_notice
from paceline.data.limits import INDEX_BASES, INTEGERS, LABEL_KINDS, SCALES, SKEW_NAMES
from paceline.data.prepare_settings import FORMATS, PrepareConfig, read_bins, split_names
from paceline.errors import counted, nothing_written, one_of

if TYPE_CHECKING:
    from paceline.data.blocks.dataset import Dataset

FORMAT_CHOICES = ("auto", *FORMATS)

new_dataset = option("--out", "DIR", "Dataset folder to create.", required=True)
train_rows = number("--rows", "Training rows.", required=True)
test_rows = number("--test-rows", "Test rows.  [default: a tenth of --rows]")
seed = number("--seed", "Random seed.", default=0)


@command("paceline generate clicks --rows 1000000 --features 33762578 --out data/clicks")
@train_rows
@number("--features", "Number of features. The default is Criteo's.", default=33_762_578)
@option("--skew", None, "How hot the hottest features are: log-uniform ranks, or as hot as in Criteo's data.",
        click.Choice(SKEW_NAMES), default="log-uniform")  # fmt: skip
@click.option("--interactions", is_flag=True, help="Let labels also depend on pairs of features.")
@click.option("--fields", is_flag=True, help="Keep the column of each nonzero, for --model ffm and fwfm.")
@new_dataset
@seed
@test_rows
def clicks(**options: Any) -> None:
    """Generate click data like Criteo's.

    Each row has 39 nonzeros. A few features are very frequent, most are rare. The labels depend on the features, so
    that models have something to learn.
    """
    from paceline.data.synthetic import generate_clicks

    print_dataset(*generate_with_progress(generate_clicks, **options))


@command("paceline generate images --rows 10000 --size 64 --out data/images")
@train_rows
@number("--size", "Height and width in pixels.", default=256)
@number("--classes", "Number of classes.", default=1000)
@number("--channels", "3 for RGB, 1 for greyscale.", default=3)
@new_dataset
@seed
@test_rows
def images(**options: Any) -> None:
    """Generate images: noise with a faint pattern per class.

    They are meant for measuring speed, but models can learn the patterns.
    """
    from paceline.data.synthetic_images import generate_images

    print_dataset(*generate_with_progress(generate_images, **options))


generate = CommandGroup(
    "generate",
    sections={"Commands": ["paceline.cli.data:clicks", "paceline.cli.data:images"]},
    help="Generate synthetic data.",
    epilog=clicks.epilog,
)


def generate_with_progress(make: Callable[..., Dataset[Any]], *, rows: int, test_rows: int | None,
                           **options: Any) -> tuple[Dataset[Any], float]:  # fmt: skip
    """Call `make` with a progress bar; by default, it makes a tenth as many test rows as training rows.

    Returns the dataset, and how many seconds it took.
    """
    from paceline.reports.progress_bar import meter

    began = time.perf_counter()
    held_out = max(1, rows // 10) if test_rows is None else test_rows
    with nothing_written(), meter("generate") as bar:

        def show(done: int) -> None:
            bar.show(done / (rows + held_out), f"{done:,} rows")

        dataset = make(rows=rows, test_rows=held_out, progress=show, **options)
    return dataset, time.perf_counter() - began


class PrepareCommand(Command):
    """Some of its options take all values up to the next option."""

    spread = ("--test", "--validation", "--weights")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        spread: list[str] = []
        inside = ""
        for word in args:
            if word.startswith("-"):
                inside = word if word in self.spread else ""
                spread += [] if inside else [word]
            else:
                spread += [inside, word] if inside else [word]
        return super().parse_args(ctx, spread)


@command(
    "paceline prepare train.tsv.gz --test-fraction 0.1 --out data/criteo",
    "paceline prepare a9a --test a9a.t --features 123 --out data/a9a",
    "paceline prepare 'part-*.tfrecord' --test last.tfrecord --out data/records",
    "paceline prepare clicks.parquet --label clicked --weight w --out data/mine",
    "paceline prepare sales.csv --drop id --cross shop,day --out data/sales",
    "paceline prepare train.ffm --validation-fraction 0.1 --out data/fields",
    "paceline prepare mnist --out data/mnist",
    "paceline prepare photos --size 256 --test-fraction 0.1 --out data/photos",
    cls=PrepareCommand,
)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...", shell_complete=files)
@new_dataset
@option("--format", "NAME", f"{one_of(FORMAT_CHOICES)}.", click.Choice(FORMAT_CHOICES), default="auto")
@number("--features", "Number of features.  [default: from the largest key]")
@number("--hash-bits", "Hash strings into 2^N keys.", default=22)
@option("--index-base", None, "First key in LIBSVM and TFRecord files.", click.Choice(INDEX_BASES), default="auto")
@option("--test", "SOURCE", "Test data: all sources up to the next option.", multiple=True)
@option("--test-fraction", "F", "Hold out this fraction of the rows as test data.", float, default=0.0)
@option("--validation", "SOURCE", "Validation data: all sources up to the next option.", multiple=True)
@option("--validation-fraction", "F", "Hold out this fraction of the rows as validation data.", float, default=0.0)
@number("--skip-bad-rows", "Skip up to N rows that cannot be parsed.", default=0)
@number("--seed", "Random seed: which rows are held out, and in which order image files are read.", default=0)
@option("--integers", None, "Turn Criteo's integers into log-scaled values or hashed buckets.",
        click.Choice(INTEGERS), default="log")  # fmt: skip
@option("--label", "COLUMN", "Label column in Parquet, Arrow and CSV files.", default="label")
@option("--labels", None, "Labels are two classes (0/1, -1/+1 or names), classes (numbers or names), or any numbers.",
        click.Choice(LABEL_KINDS), default="two-classes")  # fmt: skip
@option("--drop", "COLUMNS", "Columns of Parquet, Arrow and CSV files to leave out: A,B.", multiple=True)
@option("--categorical", "COLUMNS", "Numeric columns of which each number is a category.", multiple=True)
@option("--numeric", "COLUMNS", "Columns of text or times to read as numbers.", multiple=True)
@option("--timestamp", "COLUMNS", "Columns of text that holds timestamps.", multiple=True)
@option("--cross", "A,B", "Add the combinations of the categories of columns. May be given several times.",
        multiple=True)  # fmt: skip
@option("--bins", "COLUMN=N", "Turn numbers into N ranges, or those between given edges, as in age=18,30,65.",
        multiple=True)  # fmt: skip
@option("--weight", "COLUMN", "Column of Parquet, Arrow and CSV files that says how much each row counts.", default="")
@option("--weights", "FILE", "Files of weights, one per line, for each source file; all up to the next option.",
        multiple=True)  # fmt: skip
@click.option("--fields", is_flag=True, help="Keep the column of each feature, for field-aware models.")
@option("--scale", None, "Scale values that are far from 1, as models learn best, or keep all as they are.",
        click.Choice(SCALES), default="auto")  # fmt: skip
@click.option("--names/--no-names", help="Keep what hashed features are called, for `paceline top` and `export`.",
              default=True, show_default=True)  # fmt: skip
@number("--size", "Scale the shorter side of image files to N pixels and crop the centre.  [default: no scaling]")
@number("--classes", "Number of classes in IDX files.  [default: from the largest label]")
def prepare(sources: tuple[str, ...], test: tuple[str, ...], validation: tuple[str, ...], weights: tuple[str, ...],
            cross: tuple[str, ...], bins: tuple[str, ...], **options: Any) -> None:  # fmt: skip
    """Convert raw files into a dataset.

    A SOURCE is a file, a folder, a glob in quotes, a URL, or - for standard input. Files may be compressed (gzip or
    zstd). The format is detected unless --format is given.
    """
    from paceline.data.prepare import prepare as prepare_data
    from paceline.reports.progress_bar import prepare_meter

    for name in ("drop", "categorical", "numeric", "timestamp"):
        options[name] = [column for text in options[name] for column in split_names(text)]
    options |= {"cross": [split_names(text) for text in cross], "bins": {}}
    for text in bins:
        options["bins"] |= read_bins(text)
    config = PrepareConfig(sources=[*sources], test=[*test], validation=[*validation], weights=[*weights], **options)
    with nothing_written(), prepare_meter() as show:
        prepared = prepare_data(config, show)
    if prepared.bad_rows:
        print_notice(f"skipped {counted(prepared.bad_rows, 'bad row')}")
    for name in prepared.left_out:
        print_notice(f"`{name}` is held out: not used for training")
    for note in prepared.notes:
        print_notice(note)
    print_dataset(prepared.dataset, prepared.seconds)


def print_dataset(dataset: Dataset[Any], seconds: float) -> None:
    """Print what a dataset holds, and how long it took to make."""
    what = dataset.kind.describe(dataset.manifest)
    train, validation, test = (dataset.split(split).rows for split in ("train", "validation", "test"))
    held_out = f"{counted(validation, 'validation row')}, " if validation else ""
    click.echo(
        f"{dataset.folder}: {counted(train, 'training row')}, {held_out}{counted(test, 'test row')}, {what}, "
        f"in {seconds:.1f} s ({(train + validation + test) / seconds:,.0f} rows/s)"
    )
