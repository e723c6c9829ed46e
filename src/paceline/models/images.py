"""Classifiers of images: what a network is to one worker, and the model that a run makes of it.

All values of a network lie in one flat float32 array. The first `num_trained` are trained. The values behind those are
what a network keeps count of while it trains, such as the averages of batch normalisation (`parameters/layout.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.data.images.blocks import Images
from paceline.models.metrics import ClassSums, MetricSums
from paceline.models.model import Compute, Floats, Parameters, Tensor
from paceline.models.registry import Entry, import_from
from paceline.parameters.layout import DenseLayout, Layout
from paceline.settings import ImageConfig, OptimizerConfig, RunConfig

PART_ROWS = 256


class Network(Compute, Protocol):
    """A classifier of images as one worker has it: it computes from values that are kept elsewhere."""

    tensors: tuple[Tensor, ...]
    """All of its values, those that are trained first."""
    aliases: dict[str, str]
    """Further names of tensors that have several, to the first of them."""
    num_trained: int

    def initial(self) -> Floats:
        """The values that training begins with."""

    def scores(self, values: Floats, rows: Images) -> Floats:
        """A score for each row and class [rows, classes]; the highest is the class."""

    def losses(self, scores: Floats, labels: NDArray[np.uint16]) -> float:
        """The sum of the losses of rows with these scores and labels."""

    def close(self) -> None:
        """Release whatever it holds."""


class ImageClassifier:
    """A network in a run, as everything else sees it."""

    kernel = train_rows = None
    scoring_threads = False

    def __init__(self, make: Callable[[], Network], settings: ImageSettings, optimizer: OptimizerConfig,
                 epoch_rows: int, rows_per_update: int) -> None:  # fmt: skip
        self._make = make
        self._network = network = make()
        self._settings = settings
        # One per worker. The first worker shares its own with evaluations, during which it is paused.
        self._taken: list[Network] = []
        self.tensors = network.tensors
        size = network.tensors[-1].stop
        self.layout = Layout(dense=DenseLayout(size, network.num_trained, optimizer, epoch_rows, rows_per_update))
        self.fingerprint = fingerprint(self.tensors)

    def initial(self) -> Floats:
        return self._network.initial()

    def compute(self) -> Compute:
        self._taken.append(self._make() if self._taken else self._network)
        return self._taken[-1]

    def scores(self, parameters: Parameters, rows: Images) -> Floats:
        parts = range(0, rows.num_rows, PART_ROWS)
        found = [self._network.scores(parameters.dense, rows.slice(at, at + PART_ROWS)) for at in parts]
        return np.concatenate(found) if found else np.zeros((0, self._settings.classes), np.float32)

    def metric_sums(self) -> MetricSums:
        return ClassSums(self._network.losses)

    def probabilities(self, scores: Floats) -> Floats:
        return probabilities(scores)

    def predict(self, scores: Floats) -> dict[str, NDArray[Any]]:
        found = probabilities(scores)
        return {"class": found.argmax(axis=1).astype(np.uint16), "probability": found.max(axis=1)}

    def save(self, parameters: Parameters) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        values = parameters.dense
        for tensor in self.tensors:
            if "int" in tensor.dtype:
                np.rint(tensor.of(values), out=tensor.of(values))
        saved = {tensor.name: tensor.of(values).astype(tensor.dtype, copy=False) for tensor in self.tensors}
        aliases = {name: saved[first] for name, first in self._network.aliases.items()}
        return saved | aliases, msgspec.to_builtins(self._settings)

    def close(self) -> None:
        for network in self._taken or [self._network]:
            network.close()


class ImageSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The images that a model is for, as `model.json` has it."""

    shape: tuple[int, int, int]
    classes: int
    class_names: list[str]
    images: ImageConfig


def fingerprint(tensors: tuple[Tensor, ...]) -> str:
    """What tells models with other tensors apart, in short."""
    digest = hashlib.sha256(repr([tuple(tensor) for tensor in tensors]).encode()).hexdigest()[:8]
    return f"{len(tensors)} tensors of {tensors[-1].stop:,} values ({digest})"


def build(entry: Entry, config: RunConfig, dataset: Any, rows_per_update: int) -> ImageClassifier:
    """The classifier of a run on this dataset."""
    settings = ImageSettings(
        shape=dataset.shape, classes=dataset.classes, class_names=dataset.manifest.class_names, images=config.images
    )
    return build_for(entry, config, settings, dataset.split("train").rows, rows_per_update)


def build_for(entry: Entry, config: RunConfig, settings: ImageSettings, epoch_rows: int = 1,
              rows_per_update: int = 1) -> ImageClassifier:  # fmt: skip
    """The classifier of these images, in a run with an epoch of this many rows."""
    make = partial(import_from(entry.network), entry, config, settings)
    return ImageClassifier(make, settings, config.optimizer, epoch_rows, rows_per_update)


def cross_entropy(scores: Floats, labels: NDArray[np.uint16]) -> float:
    """The sum over rows of −log p(label).

    >>> round(cross_entropy(np.zeros((2, 4), np.float32), np.array([0, 3], np.uint16)) / 2, 3)
    1.386
    """
    shifted = scores.astype(np.float64)
    with np.errstate(invalid="ignore"):  # scores of a model that has diverged: the caller sees that in the loss
        shifted -= shifted.max(axis=1, keepdims=True)
        of_labels = shifted[np.arange(len(labels)), labels]
        return float((np.log(np.exp(shifted).sum(axis=1)) - of_labels).sum())


def probabilities(scores: Floats) -> Floats:
    """Softmax of each row's scores."""
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
    result: Floats = shifted / shifted.sum(axis=1, keepdims=True)
    return result
