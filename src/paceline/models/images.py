"""Classifiers of images: the network that one worker computes with, and the model of a run around it.

All values of a network are in one flat float32 array. The first `num_trained` of them are trained. The others are
statistics that the network collects while it trains, such as the averages of batch normalisation
(`parameters/layout.py`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.data.images.blocks import Images, Shape
from paceline.data.images.dataset import check_shape
from paceline.data.labels import MOST_CLASSES
from paceline.imports import import_from
from paceline.models.losses import LabelUnits
from paceline.models.metrics import ClassSums, MetricSums
from paceline.models.model import Compute, Floats, Parameters, Tensor, size_of
from paceline.models.registry import Entry
from paceline.models.tasks import CLASSES, Task
from paceline.parameters.layout import DenseLayout, Layout
from paceline.settings import ImageConfig, RunConfig

PART_ROWS = 256


class Network(Compute, Protocol):
    """One worker's classifier of images. The values that it computes with are stored elsewhere."""

    tensors: tuple[Tensor, ...]
    """All of its values; the trained ones come first."""
    aliases: dict[str, str]
    """Other names of tensors that have several names, and the first name of each."""
    num_trained: int

    def initial(self) -> Floats:
        """The values that training begins with."""

    def scores(self, values: Floats, rows: Images) -> Floats:
        """A score for each row and class [rows, classes]; the highest is the class."""

    def losses(self, scores: Floats, labels: NDArray[np.uint16]) -> float:
        """The sum of the losses of rows with these scores and labels."""


class ClassOutput(NamedTuple):
    """What scores of classes mean, for a network."""

    network: Network
    num_classes: int = 0
    task: Task = CLASSES

    def metric_sums(self) -> MetricSums:
        return ClassSums(self._total_loss)

    def _total_loss(self, scores: Floats, labels: NDArray[np.uint16], _weights: None) -> float:
        return self.network.losses(scores, labels)

    def probabilities(self, scores: Floats) -> Floats:
        shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
        result: Floats = shifted / shifted.sum(axis=1, keepdims=True)
        return result

    def predict(self, scores: Floats) -> dict[str, NDArray[Any]]:
        found = self.probabilities(scores)
        return {"class": found.argmax(axis=1).astype(np.uint16), "probability": found.max(axis=1)}


class ImageClassifier:
    """A network in a run."""

    make_kernel = train_rows = None
    curvature: float | None = None
    loops_on_gpu = ""
    label_units = LabelUnits()
    scoring_threads = knows_start = False

    def __init__(self, entry: Entry, config: RunConfig, settings: ImageSettings, epoch_rows: int = 1,
                 rows_per_update: int = 1) -> None:  # fmt: skip
        """An epoch of the run has `epoch_rows` rows."""
        self._make: Callable[[], Network] = partial(import_from(entry.network), entry, config, settings)
        self._network: Network = self._make()
        # One per worker. The first worker shares its own with evaluations, during which it is paused.
        self._spare = [self._network]
        self.output = ClassOutput(self._network, settings.classes)
        self._entry, self._config, self._settings = entry, config, settings
        self.start_loss = math.log(max(2, settings.classes))
        self.tensors, size = self._network.tensors, size_of(self._network.tensors)
        sizes = size, self._network.num_trained, config.optimizer, epoch_rows, rows_per_update
        dense = DenseLayout(*sizes, config.start.rows, config.start.updates)
        self.layout = Layout(dense=dense)
        digest = hashlib.sha256(repr([tuple(tensor) for tensor in self.tensors]).encode()).hexdigest()[:8]
        self.fingerprint = f"{len(self.tensors)} tensors of {size:,} values ({digest})"

    def initial(self) -> Floats:
        return self._network.initial()

    def compute(self) -> Compute:
        return self._spare.pop() if self._spare else self._make()

    def on(self, device: str) -> ImageClassifier:
        """The same classifier, to score with on this device."""
        return ImageClassifier(self._entry, msgspec.structs.replace(self._config, device=device), self._settings)

    def scores(self, parameters: Parameters, rows: Images) -> Floats:
        parts = range(0, rows.num_rows, PART_ROWS)
        found = [self._network.scores(parameters.dense, rows.slice(at, at + PART_ROWS)) for at in parts]
        return np.concatenate(found) if found else np.zeros((0, self._settings.classes), np.float32)

    def save(self, parameters: Parameters) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        values = parameters.dense
        for tensor in self.tensors:
            if "int" in tensor.dtype:
                np.rint(tensor.of(values), out=tensor.of(values))
        saved = {tensor.name: tensor.of(values).astype(tensor.dtype, copy=False) for tensor in self.tensors}
        aliases = {name: saved[first] for name, first in self._network.aliases.items()}
        return saved | aliases, msgspec.to_builtins(self._settings)


class ImageSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The images that a model is for, as in `model.json`."""

    shape: Shape
    classes: Annotated[int, msgspec.Meta(ge=1, le=MOST_CLASSES)]
    class_names: list[str]
    images: ImageConfig

    def __post_init__(self) -> None:
        check_shape(self.shape)


def build(entry: Entry, config: RunConfig, dataset: Any, rows_per_update: int) -> ImageClassifier:
    """The classifier of a run on this dataset."""
    settings = ImageSettings(
        shape=dataset.shape, classes=dataset.classes, class_names=list(dataset.labels.names), images=config.images
    )
    return ImageClassifier(entry, config, settings, dataset.split("train").rows, rows_per_update)


def cross_entropy(scores: Floats, labels: NDArray[Any], weights: NDArray[np.float32] | None = None) -> float:
    """The sum over rows of −log p(label), each times its weight.

    >>> round(cross_entropy(np.zeros((2, 4), np.float32), np.array([0, 3], np.uint16)) / 2, 3)
    1.386
    """
    shifted = scores.astype(np.float64)
    with np.errstate(invalid="ignore"):  # scores of a model that has diverged: the caller sees that in the loss
        shifted -= shifted.max(axis=1, keepdims=True)
        of_labels = shifted[np.arange(len(labels)), labels]
        losses = np.log(np.exp(shifted).sum(axis=1)) - of_labels
        return float(losses.sum() if weights is None else weights.astype(np.float64) @ losses)
