"""argv → configuration → a call. This file prints; it never computes."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.config import DEVICES, ENGINES, EXCHANGES, MODELS, OPTIMIZERS, RunConfig
from paceline.errors import PacelineError

if TYPE_CHECKING:
    from paceline.data.images.dataset import ImageDataset
    from paceline.data.sparse.dataset import Dataset
    from paceline.matrices.settings import Settings, TraceSettings
    from paceline.run_folder import Run
    from paceline.telemetry.ceilings import Ceilings
    from paceline.training.coordinator import Status, Watch
    from paceline.training.crew import AnyQuality

FASTEST_IN_FULL = 100_000.0
PREPARE_FORMATS = ("auto", "criteo", "libsvm", "tfrecord", "parquet", "arrow", "csv", "idx", "cifar", "images")


class Paragraphs(click.Command):
    """A command whose epilog keeps its lines: examples."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.epilog:
            formatter.write_paragraph()
            for line in self.epilog.splitlines():
                formatter.write(f"  {line}\n" if line else "\n")


class SeveralValues(Paragraphs):
    """A command whose option `--test` takes all values up to the next option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        spread: list[str] = []
        inside = False
        for word in args:
            if word.startswith("-"):
                inside = word == "--test"
                spread += [] if inside else [word]
            else:
                spread += ["--test", word] if inside else [word]
        return super().parse_args(ctx, spread)


class Commands(click.Group):
    """The commands, in the order in which one uses them."""

    command_class = Paragraphs

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            for command in self.commands.values():
                examples = [line for line in (command.epilog or "").splitlines() if line.startswith("paceline")]
                for line in examples[:1]:
                    formatter.write(f"  {line}\n")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="paceline", prog_name="paceline")
def cli() -> None:
    """Train models by stochastic gradient descent, at any pace, on this machine or a cluster."""


@cli.command(epilog="Example:\npaceline demo\npaceline demo --rows 100000 --folder /tmp/demo")
@click.option("--rows", default=1_000_000, show_default=True, help="Training rows to make up.")
@click.option("--folder", type=click.Path(path_type=Path), default=Path("demo"), show_default=True,
              help="Where the data (kept for the next time) and the runs go.")  # fmt: skip
def demo(rows: int, folder: Path) -> None:
    """Make up click data, train it in sync and in async, and compare the two."""
    from paceline.demo import run_demo

    run_demo(rows, folder, lambda config: on_terminal_train(config, time.time()))


@cli.group(cls=Commands)
def generate() -> None:
    """Make up data."""


generate.epilog = "paceline generate clicks --rows 1000000 --features 33762578 --out data/clicks"


@generate.command(epilog="Example:\npaceline generate clicks --rows 1000000 --features 33762578 --out data/clicks")
@click.option("--rows", type=int, required=True, help="Training rows.")
@click.option("--features", type=int, default=33_762_578, show_default=True, help="Distinct keys; Criteo's by default.")
@click.option("--out", required=True, help="Folder to make.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--test-rows", type=int, help="Held-out rows.  [default: a tenth of --rows]")
def clicks(rows: int, features: int, out: str, seed: int, test_rows: int | None) -> None:
    """Click rows like Criteo's: 39 nonzeros, heavy-tailed keys, labels with something to learn."""
    from paceline.data.synthetic import generate_clicks
    from paceline.reports.terminal import meter

    held_out = max(1, rows // 10) if test_rows is None else test_rows
    began = time.perf_counter()
    with meter("generate") as bar:
        dataset = generate_clicks(
            out, rows=rows, features=features, test_rows=held_out, seed=seed,
            progress=lambda done: bar.show(done / (rows + held_out), f"{done:,} rows"),
        )  # fmt: skip
    print_dataset(dataset, time.perf_counter() - began)


@generate.command(epilog="Example:\npaceline generate images --rows 10000 --size 256 --classes 1000 --out data/images")
@click.option("--rows", type=int, required=True, help="Training rows.")
@click.option("--size", type=int, default=256, show_default=True, help="Height and width, in pixels.")
@click.option("--classes", type=int, default=1000, show_default=True)
@click.option("--channels", type=int, default=3, show_default=True, help="3 for RGB, 1 for grey.")
@click.option("--out", required=True, help="Folder to make.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--test-rows", type=int, help="Held-out rows.  [default: a tenth of --rows]")
def images(rows: int, test_rows: int | None, out: str, **options: Any) -> None:
    """Noise with a faint pattern a class: for throughput, with something to learn."""
    from paceline.data.synthetic_images import generate_images
    from paceline.reports.terminal import meter

    held_out = max(1, rows // 10) if test_rows is None else test_rows
    began = time.perf_counter()
    with meter("generate") as bar:
        dataset = generate_images(
            out, rows=rows, test_rows=held_out, **options,
            progress=lambda done: bar.show(done / (rows + held_out), f"{done:,} rows"),
        )  # fmt: skip
    print_dataset(dataset, time.perf_counter() - began)


@cli.command(
    cls=SeveralValues,
    epilog="""Examples:
paceline prepare train.tsv.gz --format criteo --test-fraction 0.1 --out data/criteo
paceline prepare a9a --test a9a.t --features 123 --out data/a9a
paceline prepare 'part-*.tfrecord' --test last.tfrecord --out data/records
paceline prepare clicks.parquet --label clicked --hash-bits 20 --out data/mine
paceline prepare mnist --out data/mnist
paceline prepare photos --size 256 --test-fraction 0.1 --out data/photos""",
)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--out", required=True, help="Folder to make.")
@click.option("--format", "format_", type=click.Choice(PREPARE_FORMATS), default="auto", show_default=True)
@click.option("--features", type=int, help="Number of keys; the largest one seen decides if left out.")
@click.option("--hash-bits", type=int, default=22, show_default=True, help="Strings are hashed into 2^B keys.")
@click.option("--index-base", type=click.Choice(["auto", "0", "1"]), default="auto", show_default=True,
              help="The first key of LIBSVM and TFRecord files.")  # fmt: skip
@click.option("--test", multiple=True, metavar="SOURCE", help="Held-out rows: all sources up to the next option.")
@click.option("--test-fraction", type=float, default=0.0, help="Hold out this share of the rows instead.")
@click.option("--skip-bad-rows", type=int, default=0, show_default=True, help="Rows that may fail to parse.")
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Of the rows that are held out, and of the order of image files.",
)
@click.option("--integers", type=click.Choice(["log", "bucket"]), default="log", show_default=True,
              help="Criteo's integers: one log-scaled value each, or a hashed bucket.")  # fmt: skip
@click.option("--label", default="label", show_default=True, help="The label column of Parquet, Arrow and CSV.")
@click.option("--size", type=int, help="Scale image files: the shorter side to N pixels, and cut out the centre.")
@click.option(
    "--classes", type=int, help="Number of classes in IDX files; the largest training label decides if left out."
)
def prepare(format_: Any, sources: tuple[str, ...], test: tuple[str, ...], **options: Any) -> None:
    """Turn raw files into a dataset: files, folders, globs or URLs, plain or compressed."""
    from paceline.data.prepare import PrepareConfig, Progress
    from paceline.data.prepare import prepare as prepare_data
    from paceline.reports.terminal import meter

    config = PrepareConfig(sources=list(sources), test=list(test), format=format_, **options)
    began = time.perf_counter()
    with meter("prepare") as bar:

        def show(at: Progress) -> None:
            speed = at.bytes_read / 1e6 / max(1e-9, time.perf_counter() - began)
            share = at.bytes_read / at.bytes_total if at.bytes_total else 0.0
            bar.show(min(share, 1.0), f"{at.rows:,} rows, {speed:.0f} MB/s")

        prepared = prepare_data(config, show)
    if prepared.bad_rows:
        click.echo(f"skipped {prepared.bad_rows:,} bad rows", err=True)
    for name in prepared.left_out:
        click.echo(f"`{name}` is a test file, and so was left out of training", err=True)
    for note in prepared.notes:
        click.echo(note, err=True)
    print_dataset(prepared.dataset, prepared.seconds)


@cli.command(
    epilog="""Examples:
paceline train --data data/clicks --pace async --workers 4
paceline train recipes/a9a.toml --data data/a9a
paceline train --data data/clicks --pace 4 --optimizer ftrl --l1 0.5 --test-every 100000
paceline train --data data/clicks --engine ray --workers 4 --shards 2 --pace async
paceline train --data data/mnist --model softmax --workers 4 --epochs 10"""
)
@click.argument("recipe", required=False, type=click.Path(path_type=Path), metavar="[RECIPE.toml]")
@click.option("--data", help="Dataset folder, from `prepare` or `generate`.")
@click.option("--model", help=f"{', '.join(MODELS)}, or PACKAGE.MODULE:FUNCTION for a PyTorch module.")
@click.option("--pace", help="sync, async, or how many clocks a worker may run ahead.  [default: sync]")
@click.option("--workers", type=int, help="Threads or processes that train.  [default: 1]")
@click.option("--shards", type=int, help="Processes that hold the model; the engine local has one.  [default: 1]")
@click.option("--batch-size", type=int, help="Rows a worker and clock.  [default: 100]")
@click.option("--optimizer", help=f"{', '.join(OPTIMIZERS)}.  [default: adagrad]")
@click.option("--learning-rate", type=float, help="Multiplies the mean gradient of an update.  [default: 0.05]")
@click.option("--momentum", type=float, help="Of sgd on dense models, for instance 0.9.  [default: 0]")
@click.option("--l1", type=float, help="L1 on the keys of an update, never on the bias.")
@click.option("--l2", type=float, help="L2 on the keys of an update, never on the bias; weight decay of dense models.")
@click.option("--epochs", type=int,
              help="Passes over the rows, 0 for no limit.  [default: 1, or 0 with --steps or --seconds]")  # fmt: skip
@click.option("--train-rows", type=int, help="Train on the first so many rows alone.  [default: all]")
@click.option("--steps", type=int, help="Stop after so many clocks of the furthest worker, at the latest.")
@click.option("--seconds", type=float, help="Stop after so much training time, at the latest.")
@click.option("--test-every", type=int, metavar="ROWS", help="Evaluate every so many rows, and at the end.")
@click.option("--checkpoint-every", type=float, metavar="SECONDS", help="0 for none.  [default: 60]")
@click.option("--engine", help=f"{', '.join(ENGINES)}: threads of this process, or processes of a cluster.")
@click.option("--address", help="A running Ray cluster: auto, or HOST:PORT.  [default: the engine ray starts its own]")
@click.option(
    "--exchange", help=f"{', '.join(EXCHANGES)}: how gradients of PyTorch modules travel in sync.  [default: shard]"
)
@click.option("--device", help=f"{', '.join(DEVICES)}, for PyTorch modules.  [default: cpu]")
@click.option("--seed", type=int, help="Of the order of the rows.  [default: 0]")
@click.option("--run", help="Folder to make.  [default: a new one under runs/]")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any setting of a recipe.")
def train(recipe: Path | None, settings: tuple[str, ...], **flags: Any) -> None:
    """Train a model. Flags override the recipe, --set overrides both."""
    from paceline.config import read_config

    config = read_config(recipe, {name: value for name, value in flags.items() if value is not None}, settings)
    print_run(on_terminal_train(config, command_began()))


@cli.command(epilog="Examples:\npaceline trace --size 100000 --blocks 40 --seed 1024\n"
             "paceline trace --size 100000 --blocks 40 --engine ray --address auto")  # fmt: skip
@click.option("--size", type=int, required=True, help="Rows and columns of the random matrix A.")
@click.option("--blocks", type=int, required=True, help="Cut A into K × K blocks.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--engine", default="local", show_default=True, help=f"{', '.join(ENGINES)}.")
@click.option("--address", default="", help="A running Ray cluster: auto, or HOST:PORT.")
@click.option("--workers", type=int, default=0, help="Processes of the engine ray.  [default: one a node]")
@click.option("--run", default="", help="Folder to make.  [default: a new one under runs/]")
def trace(**options: Any) -> None:
    """The trace of A² for a random matrix A, which is never held whole: elements uniform in [0, 1), float32."""
    from paceline.matrices.jobs import run_trace
    from paceline.matrices.settings import TraceSettings
    from paceline.reports.matrix_tables import print_trace

    settings = TraceSettings(**options)
    print_trace(on_terminal_job(settings, lambda watch: run_trace(settings, watch, print_notice)))


@cli.command(epilog="Examples:\npaceline matmul A.npy B.npy --out C.npy --memory 4GB\n"
             "paceline matmul A.npy B.npy --out C.npy --engine ray --address auto --block 2000")  # fmt: skip
@click.argument("left", metavar="A")
@click.argument("right", metavar="B")
@click.option("--out", required=True, help="The .npy file to write; it appears when it is whole.")
@click.option("--memory", default="4GB", show_default=True, help="What each process may use.")
@click.option("--block", type=int, default=0, help="The side of a block.  [default: as the memory allows]")
@click.option("--engine", default="local", show_default=True, help=f"{', '.join(ENGINES)}.")
@click.option("--address", default="", help="A running Ray cluster: auto, or HOST:PORT.")
@click.option("--workers", type=int, default=0, help="Processes of the engine ray.  [default: one a node]")
@click.option("--run", default="", help="Folder to make.  [default: a new one under runs/]")
def matmul(**options: Any) -> None:
    """Multiply two matrices on disk, .npy files or folders of blocks. After a kill, the same command goes on."""
    from paceline.matrices.jobs import run_matmul
    from paceline.matrices.settings import MatmulSettings
    from paceline.reports.matrix_tables import print_product

    settings = MatmulSettings(**options)
    print_product(on_terminal_job(settings, lambda watch: run_matmul(settings, watch, print_notice)))


@cli.command(epilog="Example:\npaceline resume runs/20260101-120000-logistic-sync")
@click.argument("run")
@click.option("--address", help="Another Ray cluster than the one that the run was on.")
def resume(run: str, address: str | None) -> None:
    """Go on with a run that was stopped, from its newest checkpoint."""
    from paceline.run import resume as resume_run

    print_run(watched("resume", lambda watch: resume_run(run, watch, command_began(), print_notice, address)))


@cli.command(epilog="Example:\npaceline evaluate runs/my-run --data data/clicks")
@click.argument("run")
@click.option("--data", required=True, help="Dataset folder.")
@click.option("--split", type=click.Choice(["train", "test"]), help="Which rows.  [default: test, if there are any]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
def evaluate(run: str, data: str, split: Any, as_json: bool) -> None:
    """Loss, error and AUC of a trained model on a dataset; accuracy where there are classes."""
    import json

    from paceline.predict import evaluate_model
    from paceline.reports.terminal import print_table

    rows, quality = evaluate_model(run, data, split)
    if as_json:
        click.echo(json.dumps({"rows": rows, **quality}))
    else:
        print_table(("rows", *quality), [(f"{rows:,}", *("–" if v is None else f"{v:.5f}" for v in quality.values()))])


@cli.command(epilog="Example:\npaceline predict runs/my-run --data data/clicks --out scores.parquet")
@click.argument("run")
@click.option("--data", required=True, help="Dataset folder.")
@click.option("--out", required=True, help="File to write: .parquet or .csv.")
@click.option("--split", type=click.Choice(["train", "test"]), help="Which rows.  [default: test, if there are any]")
def predict(run: str, data: str, out: str, split: Any) -> None:
    """Write the probability of every row of a dataset: columns row, label, probability; for classes also the
    likeliest one, whose probability it is.
    """
    from paceline.predict import write_predictions

    rows = write_predictions(run, data, out, split)
    click.echo(f"{rows:,} rows written to {out}")


@cli.command(epilog="Example:\npaceline diagnose runs/my-run")
@click.argument("run")
@click.option("--ops", is_flag=True, help="Time the operations of one gradient step, too, on rows of the run's data.")
@click.option("--json", "as_json", is_flag=True, help="Print diagnosis.json.")
def diagnose(run: str, ops: bool, as_json: bool) -> None:
    """Say what limited a run, what removing that would gain, and what to try."""
    from paceline.run_folder import Run

    folder = Run(run)
    found = folder.diagnose()
    if not as_json:
        click.echo(found["sentence"])
        for line in found["evidence"]:
            click.echo(f"  {line}")
    if ops:
        from paceline.diagnosis.operations import add_operations

        add_operations(folder, found)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    elif ops:
        print_operations(found["operations"])


@cli.command(
    epilog="Examples:\npaceline plan runs/my-run --workers 1..16\n"
    "paceline plan runs/my-run --workers 1..64 --shards 1..8 --bandwidth 1Gbit..25Gbit"
)
@click.argument("run")
@click.option("--workers", default="1..8", show_default=True, help="How many workers, N or N..M.")
@click.option("--shards", default="1", show_default=True, help="How many shards, N or N..M.")
@click.option("--bandwidth", help="Links of machines that are each for one role.  [default: as recorded]")
@click.option("--json", "as_json", is_flag=True, help="Print the predictions as JSON.")
def plan(run: str, workers: str, shards: str, bandwidth: str | None, as_json: bool) -> None:
    """Predict how fast a run would be with other workers, shards, links and paces."""
    from paceline.diagnosis.evidence import gather_evidence
    from paceline.diagnosis.plan import bandwidths, choices, counts, predict
    from paceline.reports.predictions import predictions_as_json, print_predictions
    from paceline.reports.terminal import meter
    from paceline.run_folder import Run

    folder = Run(run)
    speeds: list[float | None] = [None] if bandwidth is None else [*bandwidths(bandwidth)]
    asked = counts(workers, "workers"), counts(shards, "shards"), speeds
    evidence = gather_evidence(folder)
    wanted, found = choices(evidence, *asked), []
    with meter("plan") as bar:
        for number, choice in enumerate(wanted):
            bar.show(number / len(wanted), f"{number} of {len(wanted)}")
            found.append(predict(evidence, choice))
    if as_json:
        click.echo(json.dumps(predictions_as_json(evidence, found), indent=2))
    else:
        print_predictions(evidence, found)


@cli.command(epilog="Examples:\npaceline doctor\npaceline doctor --folder data --json\npaceline doctor --address auto")
@click.option("--folder", type=click.Path(exists=True, file_okay=False, path_type=Path), default=Path("."),
              show_default=True, help="Whose disk to measure: where the data lies.")  # fmt: skip
@click.option("--address", default="", help="A Ray cluster whose links to measure as well: auto or HOST:PORT.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(folder: Path, address: str, as_json: bool) -> None:
    """Measure how fast this machine can be at best, and remember it.

    It takes some ten seconds, in which nothing else should run; a few more on a cluster.
    """
    import msgspec

    from paceline.telemetry.ceilings import load_ceilings, measure_ceilings, save_ceilings

    def say(what: str) -> None:
        click.echo(f"measuring {what} …", err=True)

    before = load_ceilings()
    links = before.links if before is not None else []
    if address:
        # First: an address where there is no cluster is said at once.
        from paceline.engines.links import measure_links

        links = measure_links(address, say)
    ceilings = msgspec.structs.replace(measure_ceilings(folder, say), links=links)
    if as_json:
        click.echo(msgspec.json.encode(ceilings))
    else:
        print_ceilings(ceilings)
    click.echo(f"remembered in {save_ceilings(ceilings)}", err=True)


@cli.command(
    epilog="""Examples:
paceline report runs/my-run
paceline report runs/my-run --out my-run.html --trace my-run.trace.json"""
)
@click.argument("run")
@click.option("--out", type=click.Path(path_type=Path), help="The page to write.  [default: RUN/report.html]")
@click.option("--trace", type=click.Path(path_type=Path), help="Sampled steps for a trace viewer, as JSON.")
def report(run: str, out: Path | None, trace: Path | None) -> None:
    """Write one page about a run: verdict, curves, phases, nodes. It opens in any browser, offline."""
    from paceline.reports.page import write_report
    from paceline.reports.trace import write_trace
    from paceline.reports.verdict import diagnosis_of
    from paceline.run_folder import Run

    folder = Run(run)
    page = out or folder.path / "report.html"
    write_report(folder, diagnosis_of(folder), page)
    click.echo(f"report: {page}")
    if trace:
        click.echo(f"trace: {trace} ({write_trace(folder, trace):,} steps; ui.perfetto.dev opens it)")


@cli.command(
    epilog="""Examples:
paceline compare runs/sync runs/async
paceline compare runs/* --out comparison.html"""
)
@click.argument("runs", nargs=-1, metavar="RUN RUN...")
@click.option("--out", type=click.Path(path_type=Path), help="Write a page with the runs' curves, too.")
def compare(runs: tuple[str, ...], out: Path | None) -> None:
    """Runs side by side: settings that differ, speed, quality, what held them back."""
    from paceline.reports.compare import compare as compare_runs
    from paceline.reports.compare import print_comparison, write_comparison
    from paceline.run_folder import Run

    folders = [Run(run) for run in runs]
    print_comparison(write_comparison(folders, out) if out else compare_runs(folders))
    if out:
        click.echo(f"comparison: {out}")


@cli.command(
    epilog="""Examples:
paceline sweep recipes/clicks-sync-async.toml
paceline sweep recipes/mnist-batch-size.toml --data data/mnist --out runs/batch-sizes"""
)
@click.argument("recipe", type=click.Path(path_type=Path), metavar="RECIPE.toml")
@click.option("--data", help="Dataset folder, in place of the recipe's.")
@click.option("--address", help="A running Ray cluster: auto, or HOST:PORT.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the runs.  [default: runs/NAME_OF_THE_RECIPE]")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any setting, for all runs.")
def sweep(recipe: Path, out: Path | None, settings: tuple[str, ...], **flags: Any) -> None:
    """Run every combination of what a recipe varies, and compare. The same command goes on where it was stopped."""
    from paceline.matrices.jobs import run_trace
    from paceline.reports.terminal import print_table
    from paceline.run import resume as resume_run
    from paceline.sweep import Runner, in_short, read_sweep, run_sweep

    points = read_sweep(recipe, {name: value for name, value in flags.items() if value is not None}, settings)
    folder = out or Path("runs") / recipe.stem

    def carry_on(run: Run, config: RunConfig) -> Run:
        return watched(
            "resume",
            lambda watch: resume_run(run.path, watch, time.time(), print_notice, config.address, config.data),
        )

    def start(config: RunConfig | TraceSettings) -> Run:
        if isinstance(config, RunConfig):
            return on_terminal_train(config, time.time())
        return on_terminal_job(config, lambda watch: run_trace(config, watch, print_notice))

    outcomes, written = run_sweep(points, folder, Runner(start, carry_on, lambda text: click.echo(text, err=True)))
    print_table(*in_short(outcomes))
    for path in written:
        click.echo(f"{path.stem}: {path}")
    failed = sum(1 for outcome in outcomes if outcome.error)
    if failed:
        fail(f"{failed} of {len(points)} points failed", "the same command tries them again", 1)


# -- what the commands print


def command_began() -> float:
    """When this process started, so that start-up time counts the interpreter and the imports too."""
    try:
        # psutil adds this to the time when the machine was started, which Linux tells in whole seconds.
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    except (OSError, AttributeError, ValueError, IndexError):
        import psutil

        return float(psutil.Process().create_time())


def on_terminal_train(config: RunConfig, began: float) -> Run:
    """Train with a progress bar; start-up counts from `began`."""
    from paceline.engines import StartingEngine

    if config.engine == "ray":
        click.echo(
            f"joining Ray at {config.address} …" if config.address else "starting Ray on this machine …", err=True
        )
    starting = StartingEngine(config)
    try:
        from paceline.run import train as train_run

        return watched(f"train {config.pace}", lambda watch: train_run(config, starting, watch, began, print_notice))
    finally:
        starting.close()


def on_terminal_job(settings: Settings, work: Callable[[Callable[[float, str], None]], Run]) -> Run:
    """Run a matrix job with a progress bar."""
    from paceline.reports.terminal import meter

    if settings.engine == "ray":
        where = f"joining Ray at {settings.address}" if settings.address else "starting Ray on this machine"
        click.echo(f"{where} …", err=True)
    with meter(settings.job) as bar:
        return work(bar.show)


def watched(title: str, work: Callable[[Watch], Run]) -> Run:
    """Call `work` with a watch that draws a run's status, most telling first: what does not fit is cut off."""
    from paceline.reports.terminal import meter

    with meter(title) as bar:

        def watch(at: Status) -> None:
            if not at.train_loss > 0:
                return
            speed = at.rows / at.seconds if at.seconds else 0.0
            rate = f"{speed / 1e6:.2f} M" if speed > FASTEST_IN_FULL else f"{speed:,.0f}"
            bar.show(at.share, f"{rate} rows/s, loss {at.train_loss:.4f}{in_short(at.quality)}, {at.rows:,} rows")

        return work(watch)


def in_short(quality: AnyQuality | None) -> str:
    if quality is None:
        return ""
    name, best = list(quality._asdict().items())[-1]
    return f", test {quality.loss:.4f}, {name.replace('auc', 'AUC')} {best:.4f}"


def print_notice(text: str) -> None:
    click.echo(f"note: {text}", err=True)


def print_run(run: Run) -> None:
    from paceline.reports.terminal import print_table, result_columns, result_row

    print_table(result_columns(run.result)[1:], [result_row("", run.result)[1:]])
    if (run.path / "diagnosis.json").exists():
        click.echo(run.diagnosis["sentence"])
    click.echo(f"run: {run.path}")


def print_operations(operations: list[dict[str, Any]]) -> None:
    from paceline.reports.terminal import print_table

    whole = sum(one["nanoseconds_per_row"] for one in operations)
    click.echo("one gradient step again, operation by operation:")
    print_table(
        ("operation", "ns a row", "share", "what"),
        [
            (one["name"], f"{one['nanoseconds_per_row']:.0f}", f"{one['nanoseconds_per_row'] / whole:.0%}", one["what"])
            for one in operations
        ],
    )


def print_ceilings(best: Ceilings) -> None:
    from paceline.reports.terminal import number, print_table

    def scaled(unit: str, scale: float, digits: int, *values: float | None) -> list[str]:
        return [f"{number(v / scale, digits)} {unit}" if v is not None else number(v, digits) for v in values]

    print_table(
        (f"{best.processor}, {best.cores} cores", "one thread", "all cores"),
        [
            ("memory copy",
             *scaled("GB/s", 1e9, 2, best.copy_bytes_per_second, best.copy_bytes_per_second_all_cores)),
            (f"random reads of {best.table_bytes / 1e6:.0f} MB",
             *scaled("M/s", 1e6, 0, best.gathers_per_second, best.gathers_per_second_all_cores)),
            ("matrix product, float32", *scaled("GFLOP/s", 1e9, 0, None, best.matrix_flop_per_second)),
            ("disk read", *scaled("GB/s", 1e9, 2, best.disk_read_bytes_per_second, None)),
            ("loopback", *scaled("GB/s", 1e9, 2, best.loopback_bytes_per_second, None)),
            ("loopback round trip", *scaled("µs", 1e-6, 0, best.loopback_round_trip_seconds, None)),
        ],
    )  # fmt: skip
    if best.links:
        print_table(
            ("link to node", "bandwidth", "round trip"),
            [
                (link.node, *scaled("GB/s", 1e9, 2, link.bytes_per_second),
                 *scaled("µs", 1e-6, 0, link.round_trip_seconds))
                for link in best.links
            ],
        )  # fmt: skip
    for name, reason in best.left_out.items():
        print_notice(f"{name} is left out: {reason}")


def print_dataset(dataset: Dataset | ImageDataset, seconds: float) -> None:
    from paceline.data.sparse.dataset import Dataset

    train_rows, test_rows = dataset.split("train").rows, dataset.split("test").rows
    if isinstance(dataset, Dataset):
        what = f"{dataset.features:,} features"
    else:
        what = f"{' × '.join(map(str, dataset.shape))} bytes each, {dataset.classes:,} classes"
    click.echo(
        f"{dataset.folder}: {train_rows:,} training and {test_rows:,} test rows, {what}, "
        f"in {seconds:.1f} s ({(train_rows + test_rows) / seconds:,.0f} rows/s)"
    )


class RememberedInterrupts:
    """Ctrl-C as Python has it. Libraries that are being loaded may swallow it: whoever begins work looks at `asked`."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self, _signal: int, _frame: object) -> None:
        self.asked = True
        raise KeyboardInterrupt


def main() -> None:
    """The command `paceline`: prints errors as one line and a hint, and exits with their code."""
    interrupts = RememberedInterrupts()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupts)
    try:
        cli.main(prog_name="paceline", standalone_mode=False)
    except click.exceptions.Abort:
        fail("interrupted", "", 130)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "")
        sys.exit(2)
    except click.ClickException as error:
        message, _, hint = error.format_message().partition("\n")
        fail(*split_suggestion(message, hint, error), code=2)
    except PacelineError as error:
        fail(error.message, error.hint, error.exit_code)
    except KeyboardInterrupt:
        fail("interrupted", "", 130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)


def split_suggestion(message: str, hint: str, error: click.ClickException) -> tuple[str, str]:
    """click's suggestion as our hint; without one, where to look."""
    for start in (" Did you mean", " (Did you mean", " (Possible options"):
        at = message.find(start)
        if at >= 0:
            return message[:at], message[at:].strip(" ()")
    context = getattr(error, "ctx", None)
    return message, hint or f"`{context.command_path if context else 'paceline'} --help` shows how"


def fail(message: str, hint: str, code: int) -> None:
    """Say what is wrong and leave."""
    click.echo(f"error: {message}", err=True)
    if hint:
        click.echo(f"hint: {hint}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
