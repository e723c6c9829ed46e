"""Does a dataset fit the model of a run?"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from paceline.data.blocks.folders import open_folder
from paceline.data.blocks.manifests import read_text
from paceline.data.datasets import AnyDataset, open_dataset
from paceline.data.label_statistics import LabelStatistics
from paceline.data.labels import Labels
from paceline.errors import BAD_TEXT, ConfigError, DataError, PacelineError
from paceline.models.label_statistics import refuse_below, refuse_class_weight, refuse_unseen
from paceline.models.loss_entries import LOSSES
from paceline.models.registry import IMAGES, MODELS, ROWS, Entry, find
from paceline.settings import Count, RunConfig

INPUTS = {ROWS: "rows of features", IMAGES: "images"}


class RowCount(msgspec.Struct, frozen=True):
    """The part of a split's manifest that counts here."""

    rows: Count = 0


class ManifestHead(msgspec.Struct, frozen=True):
    """The part of a manifest of any kind that counts here. Labels and fields are those of rows of features."""

    train: RowCount
    validation: RowCount = RowCount()
    kind: str = ROWS
    labels: Labels = Labels()
    fields: tuple[str, ...] = ()
    label_statistics: LabelStatistics | None = None

    def __post_init__(self) -> None:
        if self.label_statistics is not None:
            self.label_statistics.check_for(self.labels)


class Described(NamedTuple):
    """A dataset as its manifest describes it."""

    folder: Any
    manifest: Any


def check_manifest(config: RunConfig) -> None:
    """Refuse data whose manifest alone shows that the model of a run cannot learn from it: before a cluster starts, and
    before libraries are loaded that take long. What cannot be read is left to `open_for`.
    """
    folder = open_folder(config.data)
    try:
        manifest = msgspec.json.decode(read_text(folder), type=ManifestHead)
    except (OSError, PacelineError, *BAD_TEXT):
        return
    if manifest.kind in INPUTS:
        _refuse_unfit(config, manifest.kind, Described(folder, manifest))


def open_for(config: RunConfig) -> AnyDataset:
    """The data of a run; `ConfigError` if its model cannot learn from it."""
    dataset, entry = open_dataset(config.data), find(config.model)
    _refuse_unfit(config, dataset.kind.name, dataset)
    if config.start_from:
        _as_before(dataset, config)
        entry.loss_for(config.loss.name, dataset.labels.kind)
    if not entry.scaled:
        dataset.use_source_values()
    if config.train_rows:
        dataset.keep_first(config.train_rows)
    return dataset


def _refuse_unfit(config: RunConfig, kind: str, dataset: Any) -> None:
    """Raise if the model of a run cannot learn from a dataset of this kind, as its manifest describes it."""
    entry, manifest = find(config.model), dataset.manifest
    if kind != entry.input:
        _refuse_kind(config, entry, kind, dataset)
    if kind == ROWS:
        _refuse_labels(config, entry, dataset)
        if entry.needs_fields and not manifest.fields:
            raise ConfigError(
                f"the model `{config.model}` needs the field of each nonzero; `{dataset.folder}` has no fields",
                "prepare the data again with --fields, or --model fm",
            )
    if config.early_stopping and not manifest.validation.rows:
        raise ConfigError(
            f"`early_stopping` is {config.early_stopping}, but `{dataset.folder}` has no validation rows",
            "prepare the data with --validation-fraction 0.1, or train with --early-stopping 0",
        )
    if config.train_rows > manifest.train.rows:
        raise ConfigError(
            f"`train_rows` is {config.train_rows:,}; `{dataset.folder}` has {manifest.train.rows:,} training rows",
            "leave it out to use all rows",
        )


def _refuse_kind(config: RunConfig, entry: Entry, kind: str, dataset: Any) -> None:
    others = [f"--model {name}" for name, other in MODELS.items() if other.input == kind]
    hint = f"{others[0]}, or a dataset of {INPUTS[entry.input]}"
    if entry.name not in MODELS and kind == ROWS:
        hint = f"if it is for {INPUTS[ROWS]}, declare it with @sparse_model; else give a dataset of {INPUTS[IMAGES]}"
    raise ConfigError(
        f"the model `{config.model}` learns from {INPUTS[entry.input]}; `{dataset.folder}` has {INPUTS[kind]}", hint
    )


def _refuse_labels(config: RunConfig, entry: Entry, dataset: Any) -> None:
    """Raise if the labels are not for the loss. A run that starts from a model reads them as that model knows them."""
    refuse_class_weight(config, dataset)
    if config.start_from:
        return
    loss = entry.loss_for(config.loss.name, dataset.manifest.labels.kind)
    refuse_unseen(dataset)
    if dataset.manifest.label_statistics is not None:
        refuse_below(LOSSES[loss].least_label, dataset, loss)


def _as_before(dataset: AnyDataset, config: RunConfig) -> None:
    """Read a dataset as the model from which a run starts knows data: its classes, its keys and its values."""
    # Not at the top: few runs need it.
    from paceline.data.labels import Labels
    from paceline.data.limits import LabelKind
    from paceline.data.sparse.dataset import SparseDataset
    from paceline.data.sparse.scaling import Scaling

    start = config.start
    try:
        scaling = msgspec.convert(start.scaling, Scaling)
        kind = msgspec.convert(start.labels or dataset.labels.kind, LabelKind)
        if start.class_names and len(set(Labels(kind, start.class_names).names)) < len(start.class_names):
            raise ValueError("two classes have the same name")
        if max(scaling.keys, default=-1) >= start.features:
            raise ValueError(f"the scaled keys are not below the {start.features} features")
        fields = dataset.manifest.fields if isinstance(dataset, SparseDataset) else ()
        if fields and max(scaling.fields, default=-1) >= len(fields):
            raise ValueError(f"the scaled keys are not in the {len(fields)} fields")
    except ValueError as error:
        raise DataError(f"the model of `{config.start_from}` cannot be read: {error}", "train again") from None
    if start.class_names and dataset.labels.names:
        dataset.number_classes_as(start.class_names, kind)
    if isinstance(dataset, SparseDataset):
        dataset.features = max(dataset.features, start.features)
        dataset.rescale(scaling)
