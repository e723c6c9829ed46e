"""Commands that write pages: `report` and `compare`."""

from __future__ import annotations

from pathlib import Path

import click

from paceline.cli.help import command
from paceline.cli.options import PATH, option


@command("paceline report runs/my-run", "paceline report runs/my-run --out my-run.html --trace my-run.trace.json")
@click.argument("run")
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
@click.argument("runs", nargs=-1, metavar="RUN RUN...")
@option("--out", "FILE", "Also write a page with the curves.", PATH)
def compare(runs: tuple[str, ...], out: Path | None) -> None:
    """Compare runs: settings that differ, speed, quality, verdicts."""
    from paceline.diagnosis import ensure_diagnosis
    from paceline.reports.compare import compare as compare_runs
    from paceline.reports.compare import print_comparison, write_comparison
    from paceline.run_folder import RunFolder

    folders = [RunFolder(run) for run in runs]
    for folder in folders:
        ensure_diagnosis(folder)
    print_comparison(write_comparison(folders, out) if out else compare_runs(folders))
    if out:
        click.echo(f"comparison: {out}")
