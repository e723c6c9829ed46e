"""Where does the time inside one gradient step go? Its operations, timed again one by one on rows of the run's data.

Unlike the diagnosis this needs the dataset, and measures the machine that it runs on.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from paceline.data.blocks.reader import Reader
from paceline.data.rows import EpochOrder
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.dataset import SparseDataset
from paceline.errors import UsageError
from paceline.kernels.losses import measure_rows
from paceline.kernels.numbering import number_keys
from paceline.kernels.operations import scatter_rows, score_rows
from paceline.models.linear import build_for
from paceline.parameters.keyed import KeyedStore
from paceline.parameters.scratch import Scratch
from paceline.run_folder import RunFolder

BATCHES = 40
# Single rows are over before a clock can tell.
FEWEST_ROWS = 100


def time_operations(run: RunFolder, batches: int = BATCHES) -> list[dict[str, Any]]:
    """Time the operations of a step on batches like the run's, with a table of its size, on this machine.

    Returns the name of each operation, what it does, and the nanoseconds per row that it took, as the median over
    batches.
    """
    config = run.config
    if not run.facts.traits.operations:
        raise UsageError(f"the operations of a step of `{config.model}` cannot be timed", "leave out --ops")
    dataset = SparseDataset(config.data)
    split = dataset.split("train")
    rows = min(max(config.batch_size, FEWEST_ROWS), split.rows)
    reader = Reader(dataset, EpochOrder([block.rows for block in split.blocks], config.seed))
    model = build_for(config, dataset.features)
    assert model.layout.table is not None
    store, scratch = KeyedStore(model.layout.table), Scratch(model.layout.table)
    found: dict[str, list[float]] = {}
    for number in range(-1, batches):
        start = (max(number, 0) * rows) % (split.rows - rows + 1)
        began = time.perf_counter_ns()
        batch = reader.between(start, start + rows)
        spent = {"read": time.perf_counter_ns() - began} | _time_step(batch, scratch, store, model.kernel.loss)
        if number >= 0:  # the first one loads the loops
            for name, nanoseconds in spent.items():
                found.setdefault(name, []).append(nanoseconds / rows)
    return [
        {"name": name, "what": WHAT[name], "nanoseconds_per_row": statistics.median(each)}
        for name, each in found.items()
    ]


def add_operations(run: RunFolder, diagnosis: dict[str, Any]) -> None:
    """Time the operations of a step, and add them to the run's diagnosis."""
    diagnosis["operations"] = time_operations(run)
    run.write_json("diagnosis.json", diagnosis)


def _time_step(batch: Batch, scratch: Scratch, store: KeyedStore, loss: Any) -> dict[str, int]:
    """The nanoseconds of each operation of one step."""
    bias, room = scratch.bias, scratch.room_for(batch.num_nonzeros)
    scores, slopes = np.zeros(batch.num_rows, np.float32), np.zeros(batch.num_rows, np.float32)
    began = time.perf_counter_ns()
    count = number_keys(batch.keys, bias, room.slots, room.direct, room.turn, room.distinct, room.local)
    spent = {"number keys": time.perf_counter_ns() - began}
    weights, sums, distinct = room.weights[:count], room.sums[:count], room.distinct[:count]
    steps: dict[str, Callable[[], object]] = {
        "gather": lambda: store.gather(distinct, weights),
        "score": lambda: score_rows(batch.offsets, room.local, batch.values, weights, scores),
        "sigmoid": lambda: measure_rows(loss, scores, batch.labels, slopes),
        "scatter": lambda: scatter_rows(batch.offsets, room.local, batch.values, slopes, sums),
        "apply": lambda: store.apply(distinct, sums, batch.num_rows, 0),
    }
    for name, step in steps.items():
        began = time.perf_counter_ns()
        step()
        spent[name] = time.perf_counter_ns() - began
    return spent


WHAT = {
    "read": "copy the rows of a batch into one array",
    "number keys": "find its distinct keys",
    "gather": "get their weights",
    "score": "sum weights times values",
    "sigmoid": "turn scores into slopes and losses",
    "scatter": "sum the rows' gradients by key",
    "apply": "update the weights",
}
