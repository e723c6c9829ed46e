"""Where does the time inside one gradient step go? Its operations, timed again one by one on rows of the run's data.

The model's entry names its operations. Unlike the diagnosis this needs the dataset, and measures the machine that it
runs on.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

from paceline.data.blocks.reader import Reader
from paceline.data.rows import EpochOrder
from paceline.errors import DataError, UsageError
from paceline.imports import import_from
from paceline.models.inputs import open_for
from paceline.models.model import StepOperations
from paceline.models.registry import find, is_known
from paceline.run_folder import RunFolder

BATCHES = 40
# Single rows are over before a clock can tell.
FEWEST_ROWS = 100
READ = {"read": "copy the rows of a batch into one array"}


def time_operations(run: RunFolder, batches: int = BATCHES) -> list[dict[str, Any]]:
    """Time the operations of a step on batches like the run's, with parameters of its size, on this machine.

    Returns the name of each operation, what it does, and the nanoseconds per row that it took, as the median over
    batches.
    """
    config = run.config
    # A user's function has none, and is not imported just because a run folder names it.
    entry = find(config.model) if is_known(config.model) else None
    if entry is None or not entry.operations:
        raise UsageError(f"the operations of a step of `{config.model}` cannot be timed", "leave out --ops")
    try:
        dataset = open_for(config)
    except DataError as error:
        raise DataError(error.message, "--ops needs the run's data: put it back there, or leave --ops out") from None
    split = dataset.split("train")
    rows = min(max(config.batch_size, FEWEST_ROWS), split.rows)
    order = EpochOrder([block.rows for block in split.blocks], config.seed, config.shuffle)
    reader: Reader[Any] = Reader(dataset, order)
    operations: StepOperations = import_from(entry.operations)(entry.build(config, dataset, rows), rows)
    what = READ | operations.what
    found: dict[str, list[float]] = {name: [] for name in what}

    def step(start: int) -> Iterator[str]:
        """One step on the rows from `start`; yields the name of each operation as soon as it is done."""
        batch = reader.between(start, start + rows)
        yield from READ
        yield from operations.step(batch)

    for number in range(-1, batches):
        began = time.perf_counter_ns()
        for name in step((max(number, 0) * rows) % (split.rows - rows + 1)):
            found[name].append((time.perf_counter_ns() - began) / rows)
            began = time.perf_counter_ns()
    # The first step loads the compiled loops.
    medians = {name: statistics.median(each[1:]) for name, each in found.items()}
    return [{"name": name, "what": said, "nanoseconds_per_row": medians[name]} for name, said in what.items()]


def add_operations(run: RunFolder, diagnosis: dict[str, Any]) -> None:
    """Time the operations of a step, and add them to the run's diagnosis."""
    diagnosis["operations"] = time_operations(run)
    run.write_json("diagnosis.json", diagnosis)
