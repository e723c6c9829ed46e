"""Where does the time inside one gradient step go? Its operations, timed again one by one on rows of the run's data."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from paceline.data.blocks import Dataset
from paceline.data.reader import RowReader
from paceline.data.rows import EpochOrder
from paceline.kernels.logistic import apply_gradient, gather, number_keys
from paceline.kernels.operations import scatter_rows, score_rows, sigmoid_rows
from paceline.models.logistic import LogisticScratch
from paceline.optimizers import rules_at, width
from paceline.run_folder import Run

BATCHES = 40
# Single rows are over before a clock can tell.
FEWEST_ROWS = 100


class Operation(NamedTuple):
    """One operation: its name, what it does, and the nanoseconds a row that it took, the median over batches."""

    name: str
    what: str
    nanoseconds_per_row: float


def time_operations(run: Run, batches: int = BATCHES) -> list[Operation]:
    """Time the operations of a step on batches like the run's, with a table of its size, on this machine alone."""
    config = run.config
    dataset = Dataset(config.data)
    split = dataset.split("train")
    rows = min(max(config.batch_size, FEWEST_ROWS), split.rows)
    reader = RowReader(dataset, EpochOrder([block.rows for block in split.blocks], config.seed))
    scratch = LogisticScratch(dataset.features, dataset.key_dtype)
    rules = rules_at(config.optimizer, 0)
    table = np.zeros((dataset.features + 1) * width(config.optimizer), np.float32)
    scores, slopes = np.zeros(rows, np.float32), np.zeros(rows, np.float32)
    bias = dataset.features
    found: dict[str, list[float]] = {}
    for number in range(-1, batches):
        start = (max(number, 0) * rows) % (split.rows - rows + 1)
        began = time.perf_counter_ns()
        batch = reader.between(start, start + rows)
        spent = {"read": time.perf_counter_ns() - began}
        room = scratch.room_for(batch.num_nonzeros)
        count = 0

        def number_them() -> None:
            nonlocal count
            count = number_keys(batch.keys, bias, room.slots, room.direct, room.turn, room.distinct, room.local)  # noqa: B023

        spent["number keys"] = _nanoseconds(number_them)
        weights, sums, distinct = room.weights[:count], room.sums[:count], room.distinct[:count]
        steps: dict[str, Callable[[], object]] = {
            "gather": lambda: gather(*rules, table, bias, distinct, weights),  # noqa: B023
            "score": lambda: score_rows(batch.offsets, room.local, batch.values, weights, scores),  # noqa: B023
            "sigmoid": lambda: sigmoid_rows(scores, batch.labels, slopes),  # noqa: B023
            "scatter": lambda: scatter_rows(batch.offsets, room.local, batch.values, slopes, sums),  # noqa: B023
            "apply": lambda: apply_gradient(*rules, table, bias, distinct, sums, rows),  # noqa: B023
        }
        for name, step in steps.items():
            spent[name] = _nanoseconds(step)
        if number >= 0:  # the first one loads the loops
            for name, nanoseconds in spent.items():
                found.setdefault(name, []).append(nanoseconds / rows)
    return [Operation(name, WHAT[name], statistics.median(each)) for name, each in found.items()]


WHAT = {
    "read": "copy the rows of a batch together",
    "number keys": "find its distinct keys",
    "gather": "get their weights",
    "score": "add up weights times values",
    "sigmoid": "turn scores into slopes and losses",
    "scatter": "add the rows' gradients up by key",
    "apply": "update the weights",
}


def _nanoseconds(step: Callable[[], object]) -> int:
    began = time.perf_counter_ns()
    step()
    return time.perf_counter_ns() - began
