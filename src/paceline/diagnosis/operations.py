"""Where does the time inside one gradient step go? Its operations, timed again one by one on rows of the run's data.

Unlike the diagnosis this needs the dataset, and measures the machine that it runs on.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from paceline.data.blocks.reader import Reader
from paceline.data.rows import EpochOrder
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
WHAT = {
    "read": "copy the rows of a batch into one array",
    "number keys": "find its distinct keys",
    "gather": "get their weights",
    "score": "sum weights times values",
    "sigmoid": "turn scores into slopes and losses",
    "scatter": "sum the rows' gradients by key",
    "apply": "update the weights",
}


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
    scores, slopes = np.zeros(rows, np.float32), np.zeros(rows, np.float32)

    def step(start: int) -> Iterator[str]:
        """One gradient step on the rows from `start`; yields the name of each operation as soon as it is done."""
        batch = reader.between(start, start + rows)
        yield "read"
        room = scratch.room_for(batch.num_nonzeros)
        bias = scratch.bias
        count = number_keys(batch.keys, bias, room.slots, room.direct, room.turn, room.distinct, room.local)
        yield "number keys"
        weights, sums, distinct = room.weights[:count], room.sums[:count], room.distinct[:count]
        store.gather(distinct, weights)
        yield "gather"
        score_rows(batch.offsets, room.local, batch.values, weights, scores)
        yield "score"
        measure_rows(model.kernel.loss, scores, batch.labels, slopes)
        yield "sigmoid"
        scatter_rows(batch.offsets, room.local, batch.values, slopes, sums)
        yield "scatter"
        store.apply(distinct, sums, rows, 0)
        yield "apply"

    found: dict[str, list[float]] = {name: [] for name in WHAT}
    for number in range(-1, batches):
        began = time.perf_counter_ns()
        for name in step((max(number, 0) * rows) % (split.rows - rows + 1)):
            found[name].append((time.perf_counter_ns() - began) / rows)
            began = time.perf_counter_ns()
    # The first step loads the compiled loops.
    medians = {name: statistics.median(each[1:]) for name, each in found.items()}
    return [{"name": name, "what": what, "nanoseconds_per_row": medians[name]} for name, what in WHAT.items()]


def add_operations(run: RunFolder, diagnosis: dict[str, Any]) -> None:
    """Time the operations of a step, and add them to the run's diagnosis."""
    diagnosis["operations"] = time_operations(run)
    run.write_json("diagnosis.json", diagnosis)
