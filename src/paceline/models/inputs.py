"""Does a dataset fit the model of a run?"""

from __future__ import annotations

import msgspec

from paceline.data.datasets import AnyDataset, open_dataset
from paceline.errors import ConfigError, DataError
from paceline.models.registry import IMAGES, MODELS, ROWS, find
from paceline.settings import RunConfig

INPUTS = {ROWS: "rows of features", IMAGES: "images"}


def open_for(config: RunConfig) -> AnyDataset:
    """The data of a run; `ConfigError` if its model cannot learn from it."""
    dataset, entry = open_dataset(config.data), find(config.model)
    found = dataset.kind.name
    if found != entry.input:
        others = [f"--model {name}" for name, other in MODELS.items() if other.input == found]
        hint = f"{others[0]}, or a dataset of {INPUTS[entry.input]}"
        if entry.name not in MODELS and found == ROWS:
            hint = (
                f"if it is for {INPUTS[ROWS]}, declare it with @sparse_model; else give a dataset of {INPUTS[IMAGES]}"
            )
        raise ConfigError(
            f"the model `{config.model}` learns from {INPUTS[entry.input]}; `{dataset.folder}` has {INPUTS[found]}",
            hint,
        )
    if config.start_from:
        _as_before(dataset, config)
    entry.loss_for(config.loss.name, dataset.labels.kind)
    if not entry.scaled:
        dataset.use_source_values()
    if config.early_stopping and not dataset.split("validation").rows:
        raise ConfigError(
            f"`early_stopping` is {config.early_stopping}, but `{dataset.folder}` has no validation rows",
            "prepare the data with --validation-fraction 0.1",
        )
    if config.train_rows:
        available = dataset.split("train").rows
        if config.train_rows > available:
            raise ConfigError(
                f"`train_rows` is {config.train_rows:,}; `{dataset.folder}` has {available:,} training rows",
                "leave it out to use all rows",
            )
        dataset.keep_first(config.train_rows)
    return dataset


def _as_before(dataset: AnyDataset, config: RunConfig) -> None:
    """Read a dataset as the model from which a run starts knows data: its classes, its keys and its values."""
    # Not at the top: few runs need it.
    from paceline.data.limits import LabelKind
    from paceline.data.sparse.dataset import SparseDataset
    from paceline.data.sparse.scaling import Scaling

    start = config.start
    try:
        scaling = msgspec.convert(start.scaling, Scaling)
        kind = msgspec.convert(start.labels or dataset.labels.kind, LabelKind)
    except msgspec.ValidationError as error:
        raise DataError(f"the model of `{config.start_from}` cannot be read: {error}", "train again") from None
    if start.class_names and dataset.labels.names:
        dataset.number_classes_as(start.class_names, kind)
    if isinstance(dataset, SparseDataset):
        dataset.features = max(dataset.features, start.features)
        dataset.rescale(scaling)
