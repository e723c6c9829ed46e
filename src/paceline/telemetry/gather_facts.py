"""Where do a run's facts come from? From its model, its dataset and this machine, while it trains.

Counting the keys of batches reads some rows. A thread does that after ten seconds of training, or at the end of a
shorter run, so that neither starting nor a short run gets slower.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from msgspec.structs import replace

from paceline.data.blocks.reader import Reader
from paceline.data.datasets import AnyDataset
from paceline.data.rows import EpochOrder
from paceline.errors import PacelineError
from paceline.machine import num_cores
from paceline.settings import RunConfig
from paceline.telemetry.ceilings import load_ceilings, processor_name
from paceline.telemetry.facts import TIMES_LARGER, Facts, GpuFacts, Traits, write_facts

MOST_WINDOWS = 3
MOST_ROWS = 16_384
DELAY_SECONDS = 10.0


def when_and_where(began: float) -> dict[str, Any]:
    """What `result.json` says about the moment in which a job began, in seconds since 1970, and about this machine."""
    machine = {
        "name": platform.node(), "processor": processor_name(), "cores": num_cores(),
        "memory_bytes": psutil.virtual_memory().total,
    }  # fmt: skip
    return {"started": datetime.fromtimestamp(began).astimezone().isoformat(timespec="seconds"), "machine": machine}


def facts_of(
    entry: Any, metrics: tuple[str, ...], dataset: AnyDataset, table: Any, gpu: GpuFacts | None = None
) -> Facts:  # fmt: skip
    """What is known when training begins: the model's entry in the registry, what evaluations measure, the layout of
    its table, if any, and what is known of a GPU that trains it.
    """
    split = dataset.split("train")
    facts = Facts(
        traits=Traits.of(entry, metrics), rows=split.rows, ceilings=load_ceilings(), cores=num_cores(), gpu=gpu
    )
    if table is None:
        return facts
    nonzeros = split.nonzeros / max(1, split.rows)
    return replace(facts, keys=table.num_keys, floats_per_key=table.width, nonzeros_per_row=nonzeros)


@contextmanager
def facts_kept(run: Path, facts: Facts, config: RunConfig, dataset: AnyDataset) -> Iterator[None]:
    """Write a run's facts into its folder, and meanwhile count the keys of its batches."""
    write_facts(run, facts)
    if not facts.keys:
        yield
        return
    ended = threading.Event()

    def complete() -> None:
        ended.wait(DELAY_SECONDS)
        # If a block cannot be read, the workers report it.
        with suppress(PacelineError):
            counted = count_keys(dataset, config)
            write_facts(run, replace(facts, keys_per_batch=counted))

    thread = threading.Thread(target=complete, name="paceline-facts")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def count_keys(dataset: Any, config: RunConfig) -> dict[int, float]:
    """The mean number of distinct keys in batches, by their rows, from a few places in the data.

    The sizes are the run's own and `TIMES_LARGER` times that, if the data has enough rows for all workers.
    """
    split = dataset.split("train")
    larger = TIMES_LARGER * config.batch_size
    sizes = [min(config.batch_size, split.rows), *([larger] if larger * config.workers <= split.rows else [])]
    reader = Reader(dataset, EpochOrder([block.rows for block in split.blocks], config.seed, config.shuffle))
    found = dict.fromkeys(sizes, 0)
    windows = min(MOST_WINDOWS, max(1, MOST_ROWS // sizes[-1]))
    for window in range(windows):
        start = (split.rows - sizes[-1]) * window // windows
        batch = reader.between(start, start + sizes[-1])
        for size in sizes:
            found[size] += len(np.unique(batch.keys[: batch.offsets[size]]))
    return {size: count / windows for size, count in found.items()}
