"""What does a run take over from a model that it starts from? What `model.json` says about the model's training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from paceline.data.blocks.folders import LocalFolder
from paceline.data.sparse.feature_counts import CountsInfo
from paceline.data.sparse.model_features import ModelFeatures
from paceline.data.sparse.names import NamesInfo
from paceline.errors import BAD_TEXT, DataError
from paceline.files import read_file
from paceline.settings import Count, Positive, Start


class Training(msgspec.Struct, frozen=True, kw_only=True):
    """`training` of `model.json`: how a model was trained, for runs that start from it. Older models do not have it.

    The first fields are those of `Start`. `optimizer` says what the state of the optimizer is for, and `checksum` is
    that of its numbers; both are empty if it was not kept.
    """

    rows: Count = 0
    updates: Count = 0
    labels: str = ""
    class_names: tuple[str, ...] = ()
    scales: tuple[float, Positive, Positive, float] | None = None
    class_weights: tuple[Positive, ...] = ()
    optimizer: str = ""
    checksum: str = ""


class SavedModel(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of `model.json` that matter here."""

    sha256: str
    features: Count = 0
    scaling: dict[str, Any] = {}
    source: dict[str, Any] = {}
    class_names: tuple[str, ...] = ()
    training: Training = Training()
    names: NamesInfo = NamesInfo()
    counts: CountsInfo = CountsInfo()


def read_saved(run: Path) -> SavedModel:
    """What `model.json` of a run says about the model's training."""
    path = run / "model" / "model.json"
    if not path.is_file():
        raise DataError(f"`{run}` holds no trained model to start from", "give the folder of a run that is done")
    try:
        return msgspec.json.decode(read_file(path, "train again"), type=SavedModel)
    except BAD_TEXT as error:
        raise DataError(f"the model in `{path.parent}` cannot be read: {error}", "train again") from None


def start_from(run: Path) -> Start:
    """What a run takes over that starts from the model of this one."""
    saved = read_saved(run)
    training = saved.training
    return Start(
        sha256=saved.sha256, rows=training.rows, updates=training.updates, features=saved.features,
        labels=training.labels, class_names=training.class_names or saved.class_names, scaling=saved.scaling,
        scales=training.scales, class_weights=training.class_weights, source=saved.source,
    )  # fmt: skip


def features_of(run: Path) -> ModelFeatures:
    """What the model of a run knows about its features."""
    saved = read_saved(run)
    return ModelFeatures(LocalFolder(run / "model"), saved.names, saved.counts)
