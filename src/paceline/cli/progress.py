"""What commands show while they run and when they are done."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.engines import ENGINES, check_access
from paceline.errors import printable

if TYPE_CHECKING:
    from paceline.matrices.settings import Settings
    from paceline.run_folder import RunFolder
    from paceline.settings import RunConfig
    from paceline.training.coordinator import Watch


def process_start() -> float:
    """When this process started, so that start-up time includes the interpreter and the imports."""
    try:
        # psutil would add this to the boot time, which Linux gives in whole seconds only.
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    except (OSError, AttributeError, ValueError, IndexError):
        import psutil

        return float(psutil.Process().create_time())


def train_with_progress(config: RunConfig, began: float) -> RunFolder:
    """Train with a progress bar; start-up time counts from `began`."""
    from paceline.training.cluster.placement import check_before_start, engine_for, may_be_data

    # First: what is wrong is said in two lines.
    check_before_start(config)
    check_access(config.engine, config.address)
    if may_be_data(config.data):
        print_shape(config)
    print_engine(config)
    with engine_for(config) as engine:
        from paceline.run import train

        return watched(f"train, pace {config.pace}", lambda watch: train(config, engine, watch, began, print_notice))


def job_with_progress(settings: Settings, work: Callable[[Callable[[float, str], None]], RunFolder]) -> RunFolder:
    """Run a matrix job with a progress bar."""
    from paceline.files import without_disk_errors
    from paceline.reports.progress_bar import meter

    check_access(settings.engine, settings.address)
    print_engine(settings)
    with meter(settings.job) as bar:
        return work(without_disk_errors(bar.show))


def watched(title: str, work: Callable[[Watch], RunFolder]) -> RunFolder:
    """Call `work` with a function that shows a run's status."""
    from paceline.reports.training_bar import training_bar

    with training_bar(title) as watch:
        return work(watch)


def print_shape(config: RunConfig) -> None:
    """Say how a run trains: its user may have left that to defaults."""
    shards = f" and {plural(config.shards, 'shard')}" if ENGINES[config.engine].has_processes else ""
    workers = f"{plural(config.workers, 'worker')}{shards}"
    try:
        click.echo(f"{config.model}: {workers}, pace {config.pace}, batch size {config.batch_size:,}", err=True)
    except BrokenPipeError:
        raise
    except OSError:
        # A log on a full disk does not end the training. `files.py`, which says so too, would load NumPy this early.
        pass


def plural(count: int, what: str) -> str:
    """A count in words.

    >>> plural(1, "worker"), plural(16, "worker")
    ('1 worker', '16 workers')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def print_engine(settings: RunConfig | Settings) -> None:
    """Say so if a cluster must be started or joined first."""
    # A matrix job's engine is checked later.
    kind = ENGINES.get(settings.engine)
    if kind is not None and kind.has_processes:
        title, address = kind.title, settings.address
        where = f"joining {title} at {address}" if address else f"starting {title} on this machine"
        click.echo(f"{where} …", err=True)


def print_notice(text: str) -> None:
    """Print something that the user should know, but that is not an error."""
    click.echo(f"note: {printable(text)}", err=True)


def print_run(run: RunFolder) -> None:
    """Print a run's result, its verdict if there is one, and its folder."""
    from paceline.reports.terminal import print_table, result_columns, result_row, rows_shown

    traits, result = run.facts.traits, run.result
    rows = rows_shown(result)
    print_table(result_columns(traits, rows)[1:], [result_row("", result, traits, rows)[1:]])
    if diagnosis := run.saved_diagnosis:
        click.echo(printable(diagnosis["sentence"]))
    click.echo(f"run: {run.path}")
