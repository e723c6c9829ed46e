"""What does a new run get that nobody asked for? A worker per core, and the pace and batch size that suit its model.

They become plain values of its `config.toml`, so that it can be repeated and resumed, also on another machine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from paceline.engines import ENGINES, usable_cores
from paceline.errors import BAD_TEXT
from paceline.models.registry import find
from paceline.settings import RunConfig

MOST_WORKERS = 1024
ROWS_PER_WORKER = 10_000
UNKNOWN = 1 << 62


class SplitRows(msgspec.Struct):
    """The part of a split's manifest that counts here."""

    rows: int


class TrainingRows(msgspec.Struct):
    """The part of a dataset's manifest that counts here. The dataset itself is opened, and checked, later."""

    train: SplitRows


def with_defaults(config: RunConfig, given: Collection[str]) -> RunConfig:
    """A checked configuration with the settings of `DEFAULTS` that were not given."""
    for name, default in DEFAULTS.items():
        if name not in given:
            config = msgspec.structs.replace(config, **{name: default(config)})
    return config


def _pace(config: RunConfig) -> str:
    return "sync" if config.exchange == "allreduce" else find(config.model).defaults.pace


def _workers(config: RunConfig) -> int:
    """One per usable core; on a cluster, shards need cores too. Small data has fewer: each worker would learn from too
    few rows before it hears of the others. One is enough if it uses all cores, or a GPU, itself.
    """
    has_processes = ENGINES[config.engine].has_processes
    if config.device != "cpu" or (find(config.model).defaults.own_threads and not has_processes):
        return 1
    cores = usable_cores(config.engine, config.address)
    most = training_rows(config) // ROWS_PER_WORKER
    return max(1, min(MOST_WORKERS, most, cores - config.shards if has_processes else cores))


def _batch_size(config: RunConfig) -> int:
    return find(config.model).defaults.batch_size(config.pace, ENGINES[config.engine].has_processes)


def training_rows(config: RunConfig) -> int:
    """How many rows a run trains on per epoch; `UNKNOWN` if that is not known before its data is opened."""
    try:
        manifest = msgspec.json.decode((Path(config.data) / "manifest.json").read_bytes(), type=TrainingRows)
    except (OSError, *BAD_TEXT):
        return config.train_rows or UNKNOWN
    return min(manifest.train.rows, config.train_rows or UNKNOWN)


# In this order: the batch size depends on the pace.
DEFAULTS: dict[str, Callable[[RunConfig], str | int]] = {"pace": _pace, "workers": _workers, "batch_size": _batch_size}
