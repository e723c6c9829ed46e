"""What do workers on this machine cost each other? Short embedded runs on generated clicks, for `paceline doctor`.

Threads share caches, memory and, in sync, every step. How much that costs differs between machines and cannot be seen
in a run with one worker. So `doctor` trains for a moment with different numbers of workers, paces and batch sizes.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from paceline.data.sparse.dataset import SparseDataset
from paceline.data.synthetic import generate_clicks
from paceline.machine import num_cores
from paceline.models.registry import find
from paceline.settings import RunConfig
from paceline.telemetry.ceilings import TrainingSpeed
from paceline.telemetry.probes import read_cores
from paceline.telemetry.records import WorkerChunk
from paceline.training.backend import Due
from paceline.training.embedded.backend import EmbeddedBackend

# Single rows, and batches of different sizes: a step costs something besides its rows.
CASES = [
    ("async", 1), ("async", 100), ("async", 1000), ("async", 4000), ("sync", 100), ("sync", 1000), ("sync", 4000),
    ("4", 100), ("4", 1000),
]  # fmt: skip
MODEL = "logistic"
BUSY = "other programs used the cores; predictions for embedded runs will be ranges"
# Windows in which other programs use this many cores do not count; at most this many times as many are tried.
MOST_OTHERS = 0.25
PATIENCE = 6


class Amount(NamedTuple):
    """How much is trained: rows of data, which each worker goes through once in each of some `windows`. `features` are
    those of Criteo's click model, a table that no cache holds.
    """

    rows: int = 200_000
    features: int = 33_762_578
    windows: int = 2


FULL_AMOUNT = Amount()


def worker_counts(cores: int) -> list[int]:
    """How many workers are tried: one, two, half of the cores, and all.

    >>> worker_counts(2), worker_counts(16)
    ([1, 2], [1, 2, 8, 16])
    """
    return sorted({1, min(2, cores), max(1, cores // 2), cores})


def measure_training(say: Callable[[str], None], amount: Amount = FULL_AMOUNT) -> list[TrainingSpeed]:
    """Rows per second of each case, with one worker up to one per core; takes about half a second each.

    Without those during which other programs used the cores all the time.
    """
    with tempfile.TemporaryDirectory(prefix="paceline-doctor-") as folder:
        say("training: generating rows")
        data = Path(folder) / "clicks"
        dataset = generate_clicks(
            data, rows=amount.rows, features=amount.features, test_rows=0, seed=0, progress=lambda _: None
        )
        found = []
        for workers in worker_counts(num_cores()):
            say(f"training, {workers} worker{'s' if workers > 1 else ''}")
            for pace, batch_size in CASES:
                speed = _speed(dataset, str(data), pace, workers, batch_size, amount)
                if speed is not None:
                    one = TrainingSpeed(pace=pace, workers=workers, batch_size=batch_size, rows_per_second=speed)
                    found.append(one)
        return found


def has_all_cases(speeds: Sequence[TrainingSpeed]) -> bool:
    """Whether every case was measured with every number of workers."""
    return len(speeds) == len(CASES) * len(worker_counts(num_cores()))


def _speed(dataset: SparseDataset, data: str, pace: str, workers: int, batch_size: int,
           amount: Amount) -> float | None:  # fmt: skip
    """The best of some windows in which other programs left the cores alone; None if there are none."""
    most = PATIENCE * amount.windows
    config = RunConfig(
        data=data, model=MODEL, pace=int(pace) if pace.isdigit() else pace, workers=workers, batch_size=batch_size,
        epochs=1 + most * workers,
    )  # fmt: skip
    backend = EmbeddedBackend(config, dataset, find(MODEL))
    quiet: list[float] = []
    try:
        backend.make_ready()
        # In the first epoch memory is touched for the first time.
        backend.run_segment(amount.rows, lambda _: Due.NOTHING, lambda _: None)
        for window in range(1, most + 1):
            backend.records()
            began, before = time.perf_counter(), _used_by_others()
            backend.run_segment((1 + window * workers) * amount.rows, lambda _: Due.NOTHING, lambda _: None)
            others = (_used_by_others() - before) / (time.perf_counter() - began)
            chunks = [record for record in backend.records() if isinstance(record, WorkerChunk)]
            rate = sum(chunk.rows / chunk.seconds for chunk in chunks if chunk.seconds > 0)
            if others < MOST_OTHERS:
                quiet.append(rate)
            if len(quiet) == amount.windows:
                break
    finally:
        backend.close()
    return max(quiet, default=None)


def _used_by_others() -> float:
    """Processor seconds of all other programs so far."""
    own = os.times()
    return sum(core.busy for core in read_cores()) - own.user - own.system
