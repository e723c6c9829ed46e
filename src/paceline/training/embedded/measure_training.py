"""What do workers on this machine cost each other? Short embedded runs on generated clicks, for `paceline doctor`.

Threads share caches, memory and, in sync, every step. How much that costs differs between machines and cannot be seen
in a run with one worker. So `doctor` trains for a moment with different numbers of workers, paces and batch sizes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from paceline.data.sparse.dataset import SparseDataset
from paceline.data.synthetic import generate_clicks
from paceline.machine import num_cores
from paceline.models.registry import find
from paceline.settings import RunConfig
from paceline.telemetry.ceilings import TrainingSpeed
from paceline.telemetry.records import WorkerChunk
from paceline.training.backend import Due
from paceline.training.embedded.backend import EmbeddedBackend

# Single rows, and batches of different sizes: a step costs something besides its rows.
CASES = [
    ("async", 1), ("async", 100), ("async", 1000), ("async", 4000), ("sync", 100), ("sync", 1000), ("sync", 4000),
    ("4", 100), ("4", 1000),
]  # fmt: skip
MODEL = "logistic"


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
    """Rows per second of each case, with one worker up to one per core; takes about half a second each."""
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
                found.append(TrainingSpeed(pace=pace, workers=workers, batch_size=batch_size, rows_per_second=speed))
        return found


def _speed(dataset: SparseDataset, data: str, pace: str, workers: int, batch_size: int, amount: Amount) -> float:
    """The best of some windows: other programs can only make a machine look slower."""
    config = RunConfig(
        data=data, model=MODEL, pace=int(pace) if pace.isdigit() else pace, workers=workers, batch_size=batch_size,
        epochs=1 + amount.windows * workers,
    )  # fmt: skip
    backend = EmbeddedBackend(config, dataset, find(MODEL))
    found = []
    try:
        backend.make_ready()
        # In the first epoch memory is touched for the first time.
        for window in range(1 + amount.windows):
            backend.run_segment((1 + window * workers) * amount.rows, lambda _: Due.NOTHING, lambda _: None)
            chunks = [record for record in backend.records() if isinstance(record, WorkerChunk)]
            found.append(sum(chunk.rows / chunk.seconds for chunk in chunks if chunk.seconds > 0))
    finally:
        backend.close()
    return max(found[1:])
