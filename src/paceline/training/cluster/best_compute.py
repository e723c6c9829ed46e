"""How long does a worker compute a step while nothing is waited for? Measured before training begins, for diagnosis."""

from __future__ import annotations

import statistics
import threading
import time

import numpy as np

from paceline.kernels.exchange import pick
from paceline.kernels.tables import Single
from paceline.machine import num_cores
from paceline.training.cluster.numbered_batch import NumberedBatch

MOST_BATCHES, MOST_ROWS, SECONDS = 8, 20_000, 0.04
ONE_ROW_TIMES, ONE_ROW_SECONDS = 200, 0.2
COMPANY_VALUES, COMPANY_GATHERS, MOST_COMPANY = 1 << 22, 1 << 16, 16


def compute_at_best(batch: NumberedBatch, batch_size: int, num_rows: int) -> float:
    """Seconds of processor time for computing a step, one after the other; changes nothing."""
    size = min(batch_size, num_rows, MOST_ROWS)
    began = time.perf_counter()
    seen: list[int] = []
    found: list[float] = []
    for start in range(0, min(num_rows - size + 1, MOST_BATCHES * size), size):
        # The first time, rows may have to be read from a disk.
        _time_compute(batch, start, start + size)
        seen.append(start)
        if time.perf_counter() - began > SECONDS / 2:
            break
    while not found or time.perf_counter() - began < SECONDS:
        start = seen[len(found) % len(seen)]
        found.append(_time_compute(batch, start, start + size))
    return statistics.median(found) * batch_size / size


def compute_in_company(batch: NumberedBatch, batch_size: int, num_rows: int) -> float:
    """The same while other cores are busy, too: the cores of a machine share what is behind them."""
    table = np.ones(COMPANY_VALUES, np.float32)
    indices = np.random.default_rng(0).integers(0, COMPANY_VALUES, COMPANY_GATHERS).astype(batch.indices(0).dtype)
    count = min(num_cores(), MOST_COMPANY) - 1
    here, done = threading.Barrier(count + 1), threading.Event()

    def keep_busy() -> None:
        own = np.zeros(COMPANY_GATHERS, np.float32)
        here.wait()
        while not done.is_set():
            pick(Single(), table, indices, own)

    company = [threading.Thread(target=keep_busy, daemon=True) for _ in range(count)]
    for one in company:
        one.start()
    here.wait()
    try:
        return compute_at_best(batch, batch_size, num_rows)
    finally:
        done.set()
        for one in company:
            one.join()


def one_row(batch: NumberedBatch) -> float:
    """Seconds of processor time for reading and computing a step of one row: nearly all of it is the same for any."""
    found: list[int] = []
    deadline = time.perf_counter() + ONE_ROW_SECONDS
    while not found or (len(found) < ONE_ROW_TIMES and time.perf_counter() < deadline):
        began = time.thread_time_ns()
        _time_compute(batch, 0, 1)
        found.append(time.thread_time_ns() - began)
    return statistics.median(found) * 1e-9


def _time_compute(batch: NumberedBatch, start: int, stop: int) -> float:
    """Seconds of processor time for computing a step over these rows."""
    read_at = batch.read(time.thread_time_ns, 0, start, stop, 0)
    numbered = time.thread_time_ns() - read_at
    for shard in range(len(batch.ends) - 1):
        batch.put(shard, np.zeros(batch.num_values(shard), np.float32))
    began = time.thread_time_ns()
    batch.gradient()
    return (numbered + time.thread_time_ns() - began) * 1e-9
