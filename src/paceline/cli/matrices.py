"""Commands for block matrices: `trace` and `matmul`."""

from __future__ import annotations

from typing import Any

import click

from paceline.cli.commands import address, command, given, new_run, number, option
from paceline.cli.completion import files
from paceline.cli.progress import job_with_progress, print_notice
from paceline.engines import ENGINES
from paceline.errors import one_of

engine = option("--engine", "NAME", f"{one_of(tuple(ENGINES))}.", default="local")
workers = number("--workers", "Processes, with --engine ray.  [default: one per node, or per core without --address]")


@command(
    "paceline trace --size 100000 --blocks 40 --seed 1024",
    "paceline trace --size 100000 --blocks 40 --engine ray --address auto",
)
@number("--size", "Rows and columns of A.", required=True)
@number("--blocks", "Split A into N × N blocks.", required=True)
@number("--seed", "Random seed.", default=0)
@engine
@address()
@workers
@new_run
def trace(**options: Any) -> None:
    """Compute the trace of A² for a random matrix A.

    The elements of A are float32, uniform in [0, 1). Blocks are generated when needed: A is never in memory as a whole.
    """
    from paceline.matrices.jobs import run_trace
    from paceline.matrices.settings import TraceSettings
    from paceline.reports.terminal import print_job

    settings = TraceSettings(**given(options))
    print_job(job_with_progress(settings, lambda watch: run_trace(settings, watch, print_notice)))


@command(
    "paceline matmul A.npy B.npy --out C.npy --memory 4GB",
    "paceline matmul A.npy B.npy --out C.npy --engine ray --address auto",
)
@click.argument("left", metavar="A", shell_complete=files)
@click.argument("right", metavar="B", shell_complete=files)
@option("--out", "FILE", "The .npy file to write. It appears when it is complete.", required=True)
@option("--memory", "BYTES", "Memory limit of each process.", default="4GB")
@number("--block", "Rows and columns of a block.  [default: what fits in --memory]")
@engine
@address()
@workers
@new_run
def matmul(**options: Any) -> None:
    """Multiply two matrices on disk.

    A and B are .npy files or folders of blocks. If the command is stopped, the same command continues it.
    """
    from paceline.matrices.jobs import run_matmul
    from paceline.matrices.settings import MatmulSettings
    from paceline.reports.terminal import print_job

    settings = MatmulSettings(**given(options))
    print_job(job_with_progress(settings, lambda watch: run_matmul(settings, watch, print_notice)))
