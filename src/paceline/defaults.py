"""Which settings does a new run get by default? A worker per core, the pace and batch size that suit its model, and for
small data as many epochs and as small batches as it needs.

They become plain values of its `config.toml`, so that it can be repeated and resumed, also on another machine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec

from paceline.engines import ENGINES, usable_cores
from paceline.errors import BAD_TEXT, PacelineError
from paceline.models.registry import find
from paceline.settings import RunConfig

MOST_WORKERS = 1024
ROWS_PER_WORKER = 10_000
UNKNOWN = 1 << 62
FEWEST_EPOCHS_OF_SMALL_DATA = 2
EPOCHS_IF_STOPPED_EARLY = 100
EVALUATIONS = 20


class SplitRows(msgspec.Struct, frozen=True):
    """The part of a split's manifest that counts here."""

    rows: Annotated[int, msgspec.Meta(ge=0)]


class TrainingRows(msgspec.Struct, frozen=True):
    """The part of a dataset's manifest that counts here. The dataset itself is opened, and checked, later."""

    train: SplitRows
    validation: SplitRows = SplitRows(0)
    hot_keys: list[int] = []


Data: TypeAlias = TrainingRows | None


def with_defaults(config: RunConfig, given: Collection[str]) -> RunConfig:
    """A checked configuration with the settings of `DEFAULTS` that were not given."""
    missing = [name for name in DEFAULTS if name not in given]
    data = _manifest(config.data) if missing else None
    for name in missing:
        config = msgspec.structs.replace(config, **{name: DEFAULTS[name](config, data)})
    return msgspec.structs.replace(config, chosen=tuple(missing))


def _pace(config: RunConfig, data: Data) -> str:
    return "sync" if config.exchange == "allreduce" else find(config.model).defaults.pace


def _workers(config: RunConfig, data: Data) -> int:
    """One per usable core; on a cluster, shards need cores too. Small data gets fewer, because each worker would learn
    from too few rows before it sees what others learned. One is enough if it uses all cores, or a GPU, itself.
    """
    has_processes = ENGINES[config.engine].has_processes
    if config.device != "cpu" or (find(config.model).defaults.own_threads and not has_processes):
        return 1
    cores = usable_cores(config.engine, config.address)
    return workers_for(_training_rows(config, data), cores - config.shards if has_processes else cores)


def _batch_size(config: RunConfig, data: Data) -> int:
    """What suits the model, but less for small data: an epoch should have some hundred updates by all workers."""
    defaults = find(config.model).defaults
    has_processes, on_gpu = ENGINES[config.engine].has_processes, config.device != "cpu"
    usual = defaults.batch_size(config.pace, has_processes, on_gpu)
    rows = _training_rows(config, data)
    if on_gpu and not has_processes and config.pace == "async" and defaults.gpu_async_rows:
        # Each row is an update of its own, so that batches of small data need not be small.
        return usual
    if not defaults.least_updates:
        return usual
    fewest = defaults.fewest_rows
    if rows >= defaults.least_rows:
        # Those of processes with GPUs are not smaller than on the CPU, and larger if there are rows enough.
        fewest = defaults.batch_size(config.pace, has_processes) if on_gpu and has_processes else usual
    return min(usual, max(fewest, rows // (defaults.least_updates * config.workers)))


def _epochs(config: RunConfig, data: Data) -> int:
    """One, but more for small data: as many as its model learns from, and fewer if there are many keys for few rows."""
    if data is None:
        return 1
    epochs = epochs_for(config.model, _training_rows(config, data), len(data.hot_keys))
    return max(epochs, EPOCHS_IF_STOPPED_EARLY) if config.early_stopping else epochs


def epochs_for(model: str, rows: int, keys: int) -> int:
    """How many epochs a model learns from a number of rows in which a number of keys occur.

    >>> epochs_for("linear", 150, 10), epochs_for("linear", 1_000_000, 4)
    (112, 1)
    """
    defaults = find(model).defaults
    most, wanted = defaults.least_rows // max(1, rows), int(defaults.repeats * (rows / max(1, keys)) ** 2)
    return max(1, min(most, max(FEWEST_EPOCHS_OF_SMALL_DATA, wanted)))


def workers_for(rows: int, cores: int) -> int:
    """How many threads train on this many rows.

    >>> workers_for(25_000, cores=8), workers_for(100, cores=8)
    (2, 1)
    """
    return max(1, min(MOST_WORKERS, rows // ROWS_PER_WORKER, cores))


def _test_every(config: RunConfig, data: Data) -> int:
    """At the end only, unless the best of several evaluations is kept: then about twenty, with whole epochs between.
    A run that may stop early evaluates after every epoch.
    """
    if data is None or not data.validation.rows:
        return 0
    return _training_rows(config, data) * (1 if config.early_stopping else max(1, config.epochs // EVALUATIONS))


def _training_rows(config: RunConfig, data: Data) -> int:
    """How many rows a run trains on per epoch; `UNKNOWN` if that is not known before its data is opened."""
    return min(data.train.rows if data is not None else UNKNOWN, config.train_rows or UNKNOWN)


def _manifest(data: str) -> Data:
    """What the manifest of a dataset says; None if it cannot be read."""
    if "://" not in data and not Path(data, "manifest.json").exists():
        return None
    # Not at the top: settings are checked before libraries are loaded that take long.
    from paceline.data.blocks.folders import open_folder
    from paceline.data.blocks.manifests import read_text

    try:
        return msgspec.json.decode(read_text(open_folder(data)), type=TrainingRows)
    except (OSError, PacelineError, *BAD_TEXT):
        return None


# In this order: the batch size depends on the pace, and evaluations on the number of epochs.
DEFAULTS: dict[str, Callable[[RunConfig, Data], str | int]] = {
    "pace": _pace, "workers": _workers, "batch_size": _batch_size, "epochs": _epochs, "test_every": _test_every
}  # fmt: skip
