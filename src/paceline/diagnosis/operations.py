"""Where does the time inside one gradient step go? Its operations, timed again one by one on rows of the run's data."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.data.rows import EpochOrder
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.dataset import Dataset
from paceline.data.sparse.reader import RowReader
from paceline.errors import UsageError
from paceline.kernels.logistic import apply_gradient, gather, number_keys
from paceline.kernels.operations import scatter_rows, score_rows, sigmoid_rows
from paceline.models.logistic import LogisticScratch
from paceline.parameters.optimizers import Rules, rules_at, width
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
    if config.dense:
        raise UsageError(
            f"the operations of a step are timed for sparse rows; this run trained `{config.model}`", "leave out --ops"
        )
    dataset = Dataset(config.data)
    split = dataset.split("train")
    rows = min(max(config.batch_size, FEWEST_ROWS), split.rows)
    reader = RowReader(dataset, EpochOrder([block.rows for block in split.blocks], config.seed))
    scratch = LogisticScratch(dataset.features, dataset.key_dtype)
    rules = rules_at(config.optimizer, 0)
    table = np.zeros((dataset.features + 1) * width(config.optimizer), np.float32)
    found: dict[str, list[float]] = {}
    for number in range(-1, batches):
        start = (max(number, 0) * rows) % (split.rows - rows + 1)
        began = time.perf_counter_ns()
        batch = reader.between(start, start + rows)
        spent = {"read": time.perf_counter_ns() - began} | _time_step(batch, scratch, rules, table)
        if number >= 0:  # the first one loads the loops
            for name, nanoseconds in spent.items():
                found.setdefault(name, []).append(nanoseconds / rows)
    return [Operation(name, WHAT[name], statistics.median(each)) for name, each in found.items()]


def add_operations(run: Run, diagnosis: dict[str, Any]) -> None:
    """Time the operations of a step, and keep them with what else was found out about the run."""
    diagnosis["operations"] = [one._asdict() for one in time_operations(run)]
    run.write_json("diagnosis.json", diagnosis)


def _time_step(batch: Batch, scratch: LogisticScratch, rules: Rules, table: NDArray[np.float32]) -> dict[str, int]:
    """The nanoseconds of each operation of one step."""
    bias, room = scratch.bias, scratch.room_for(batch.num_nonzeros)
    scores, slopes = np.zeros(batch.num_rows, np.float32), np.zeros(batch.num_rows, np.float32)
    began = time.perf_counter_ns()
    count = number_keys(batch.keys, bias, room.slots, room.direct, room.turn, room.distinct, room.local)
    spent = {"number keys": time.perf_counter_ns() - began}
    weights, sums, distinct = room.weights[:count], room.sums[:count], room.distinct[:count]
    steps: dict[str, Callable[[], object]] = {
        "gather": lambda: gather(*rules, table, bias, distinct, weights),
        "score": lambda: score_rows(batch.offsets, room.local, batch.values, weights, scores),
        "sigmoid": lambda: sigmoid_rows(scores, batch.labels, slopes),
        "scatter": lambda: scatter_rows(batch.offsets, room.local, batch.values, slopes, sums),
        "apply": lambda: apply_gradient(*rules, table, bias, distinct, sums, batch.num_rows),
    }
    for name, step in steps.items():
        began = time.perf_counter_ns()
        step()
        spent[name] = time.perf_counter_ns() - began
    return spent


WHAT = {
    "read": "copy the rows of a batch together",
    "number keys": "find its distinct keys",
    "gather": "get their weights",
    "score": "add up weights times values",
    "sigmoid": "turn scores into slopes and losses",
    "scatter": "add the rows' gradients up by key",
    "apply": "update the weights",
}
