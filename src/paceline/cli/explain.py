"""Commands that explain runs: `diagnose`, `plan`, `doctor`, `report` and `compare`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.commands import PATH, address, as_json, command, option
from paceline.cli.completion import runs as run_folders
from paceline.cli.progress import print_notice
from paceline.errors import UsageError, printable

if TYPE_CHECKING:
    from paceline.telemetry.ceilings import Ceilings, GpuCeiling


@command("paceline diagnose runs/my-run", "paceline diagnose runs/my-run --ops --json")
@click.argument("run", shell_complete=run_folders)
@click.option("--ops", is_flag=True, help="Also time each operation of a gradient step, on the run's data.")
@as_json("Print diagnosis.json.")
def diagnose(run: str, ops: bool, as_json: bool) -> None:
    """Explain what limited a run and what to change.

    Says how much faster the run would be without its bottleneck, and what would limit it next.
    """
    import json

    from paceline.diagnosis.explain import write_diagnosis
    from paceline.run_folder import RunFolder

    folder = RunFolder(run)
    found = write_diagnosis(folder)
    if ops:
        from paceline.diagnosis.operations import add_operations

        add_operations(folder, found)
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    click.echo("\n  ".join(printable(str(line)) for line in [found["sentence"], *found["evidence"]]))
    if ops:
        print_operations(found["operations"])


def print_operations(operations: list[dict[str, Any]]) -> None:
    """Print how long each operation of a gradient step takes."""
    from paceline.reports.terminal import print_table

    whole = sum(one["nanoseconds_per_row"] for one in operations)
    click.echo("one gradient step, operation by operation:")
    print_table(
        ("operation", "ns per row", "share", "what"),
        [
            (one["name"], f"{one['nanoseconds_per_row']:.0f}", f"{one['nanoseconds_per_row'] / whole:.0%}", one["what"])
            for one in operations
        ],
    )


@command(
    "paceline plan runs/my-run --workers 1..16",
    "paceline plan runs/my-run --workers 1..64 --bandwidth 1Gbit..25Gbit",
)
@click.argument("run", shell_complete=run_folders)
@option("--workers", "N..M", "Number of workers, or a range.", default="1..8")
@option("--shards", "N..M", "Number of shards, or a range.", default="1")
@option("--bandwidth", "B..C", "Bandwidth or range, with one machine per worker and shard.  [default: as recorded]")
@as_json("Print the predictions as JSON.")
def plan(run: str, workers: str, shards: str, bandwidth: str | None, as_json: bool) -> None:
    """Predict the speed of a run on other clusters and at other paces."""
    import json

    from paceline.diagnosis.evidence import gather_evidence
    from paceline.diagnosis.plan import bandwidths, choices, counts, plan_of, predict
    from paceline.reports.progress_bar import meter
    from paceline.reports.terminal import print_plan
    from paceline.run_folder import RunFolder

    speeds: list[float | None] = [None] if bandwidth is None else [*bandwidths(bandwidth)]
    asked = counts(workers, "workers"), counts(shards, "shards"), speeds
    evidence = gather_evidence(RunFolder(run))
    wanted, found = choices(evidence, *asked), []
    with meter("plan") as bar:
        for number, choice in enumerate(wanted):
            bar.show(number / len(wanted), f"{number} of {len(wanted)}")
            found.append(predict(evidence, choice))
    planned = plan_of(evidence, found)
    if as_json:
        click.echo(json.dumps(planned, indent=2))
    else:
        print_plan(planned)


@command("paceline doctor", "paceline doctor --folder data --json", "paceline doctor --address auto")
@option("--folder", "DIR", "Measure the disk of this folder.", click.Path(exists=True, file_okay=False, path_type=Path),
        default=Path("."))  # fmt: skip
@address("Also measure the links of a Ray cluster: auto or HOST:PORT.")
@as_json("Print one JSON object.")
def doctor(folder: Path, address: str | None, as_json: bool) -> None:
    """Measure how fast this machine can be, for use in diagnoses.

    Takes about half a minute, or a little longer with a cluster. Run nothing else at the same time.
    """
    import msgspec

    from paceline.telemetry.ceilings import load_ceilings, save_ceilings
    from paceline.telemetry.measure_ceilings import measure_ceilings
    from paceline.training.embedded.measure_training import BUSY, has_all_cases, measure_training

    def say(what: str) -> None:
        click.echo(f"measuring {what} …", err=True)

    links = before.links if (before := load_ceilings()) else []
    if address:
        # Links come first, so that a wrong address fails at once.
        from paceline.engines.links import measure_links

        links = measure_links(address, say)
    ceilings, training = measure_ceilings(folder, say), measure_training(say)
    gpu, why = measure_gpu(say)
    left_out = ceilings.left_out if has_all_cases(training) else {**ceilings.left_out, "some training": BUSY}
    ceilings = msgspec.structs.replace(ceilings, links=links, training=training, left_out=left_out | why, gpu=gpu)
    if as_json:
        click.echo(msgspec.json.encode(ceilings))
    else:
        print_ceilings(ceilings)
    click.echo(f"saved to {save_ceilings(ceilings)}", err=True)


def measure_gpu(say: Callable[[str], None]) -> tuple[GpuCeiling | None, dict[str, str]]:
    """The speed of this machine's GPU, or why it was not measured."""
    from importlib.util import find_spec

    say("GPU memory and bus")
    try:
        from paceline.torch.gpu_ceiling import measure_first_gpu

        return measure_first_gpu(), {}
    except UsageError as error:
        return None, {"gpu": "PyTorch is not installed" if find_spec("torch") is None else error.message}


def print_ceilings(best: Ceilings) -> None:
    """Print what `doctor` measured."""
    from paceline.reports.terminal import number, print_table

    def scaled(unit: str, scale: float, digits: int, *values: float | None) -> list[str]:
        return [f"{number(v / scale, digits)} {unit}" if v is not None else number(v, digits) for v in values]

    reads = f"random reads of {best.table_bytes / 1e6:.0f} MB"
    rows: list[tuple[Any, ...]] = [
        ("memory copy", "GB/s", 1e9, 2, best.copy_bytes_per_second, best.copy_bytes_per_second_all_cores),
        (reads, "M/s", 1e6, 0, best.gathers_per_second, best.gathers_per_second_all_cores),
        ("matrix product, float32", "GFLOP/s", 1e9, 0, None, best.matrix_flop_per_second),
        ("disk read", "GB/s", 1e9, 2, best.disk_read_bytes_per_second, None),
        ("loopback", "GB/s", 1e9, 2, best.loopback_bytes_per_second, None),
        ("loopback round trip", "µs", 1e-6, 0, best.loopback_round_trip_seconds, None),
    ]
    if best.gpu is not None:
        rows.append(("memory of the GPU", "GB/s", 1e9, 0, None, best.gpu.memory_bytes_per_second))
        rows.append(("bus to the GPU", "GB/s", 1e9, 1, None, best.gpu.bus_bytes_per_second))
    header = f"{best.processor}, {best.cores} cores", "one thread", "all cores"
    print_table(header, [(name, *scaled(*speed)) for name, *speed in rows])
    if best.links:
        print_table(
            ("link to node", "bandwidth", "round trip"),
            [
                (link.node, *scaled("GB/s", 1e9, 2, link.bytes_per_second),
                 *scaled("µs", 1e-6, 0, link.round_trip_seconds))
                for link in best.links
            ],
        )  # fmt: skip
    counts = sorted({one.workers for one in best.training})
    kinds = dict.fromkeys((one.pace, one.batch_size) for one in best.training)
    if best.training:
        speed_of = {(one.pace, one.batch_size, one.workers): one.rows_per_second / 1e6 for one in best.training}

        def told(*case: Any) -> str:
            return number(speed_of.get(case), 2)

        print_table(
            ("training, M rows/s", *(f"{count} worker{'s' if count > 1 else ''}" for count in counts)),
            [(f"pace {pace}, batch {size:,}", *(told(pace, size, count) for count in counts)) for pace, size in kinds],
        )
    for name, reason in best.left_out.items():
        print_notice(f"{name} was not measured: {reason}")


@command("paceline report runs/my-run", "paceline report runs/my-run --out my-run.html --trace my-run.trace.json")
@click.argument("run", shell_complete=run_folders)
@option("--out", "FILE", "Page to write.  [default: RUN/report.html]", PATH)
@option("--trace", "FILE", "Also write sampled steps, as JSON for a trace viewer.", PATH)
def report(run: str, out: Path | None, trace: Path | None) -> None:
    """Write a page about a run: verdict, curves, phases, nodes.

    It opens in any browser, offline.
    """
    from paceline.api import Run
    from paceline.reports.trace import write_trace

    folder = Run(run)
    click.echo(f"report: {folder.report(out)}")
    if trace:
        click.echo(f"trace: {trace} ({write_trace(folder, trace):,} steps; open it in ui.perfetto.dev)")


@command("paceline compare runs/sync runs/async", "paceline compare runs/* --out comparison.html")
@click.argument("runs", nargs=-1, metavar="RUN RUN...", shell_complete=run_folders)
@option("--out", "FILE", "Also write a page with the curves.", PATH)
def compare(runs: tuple[str, ...], out: Path | None) -> None:
    """Compare runs: settings that differ, speed, quality, verdicts."""
    from paceline.diagnosis.explain import ensure_diagnosis
    from paceline.reports.compare import compare as compare_runs
    from paceline.reports.compare import print_comparison, write_comparison
    from paceline.run_folder import RunFolder

    folders = [RunFolder(run) for run in runs]
    for folder in folders:
        ensure_diagnosis(folder)
    print_comparison(comparison := compare_runs(folders))
    if out:
        write_comparison(comparison, out)
        click.echo(f"comparison: {out}")
