"""Softmax regression: p(class | image) = softmax(W x + b), for pixels x from 0 to 1.

The loss of a row is −log p(label), and its gradient (p − y) xᵀ for W and p − y for b, where y is 1 at the label.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from paceline.data.images.blocks import Images
from paceline.data.images.crops import Crops
from paceline.kernels import softmax as kernels
from paceline.models.images import ImageSettings, cross_entropy
from paceline.models.model import Floats, Step, lay_out, size_of
from paceline.models.registry import Entry
from paceline.settings import RunConfig


class Softmax:
    """Softmax regression as one worker has it: working memory for the compiled loops."""

    holds_values = False
    use_threads = None

    def __init__(self, crops: Crops, classes: int) -> None:
        features = math.prod(crops.shape)
        self._crops = crops
        self.aliases: dict[str, str] = {}
        self.tensors = lay_out([("weight", (features, classes), "float32"), ("bias", (classes,), "float32")])
        self.num_trained = size_of(self.tensors)
        self.filled: Callable[[int], None] | None = None
        self._classes = classes
        self._length = kernels.padded_classes(classes)
        self._padded = _on_lines((features + 1) * self._length)
        self._sums = _on_lines((features + 1) * self._length)
        self._drawn = np.zeros(features + 1, np.int64)
        self._scores = _on_lines(self._length)
        self._others = _on_lines(self._length)

    def initial(self) -> Floats:
        return np.zeros(self.num_trained, np.float32)

    def gradient(self, step: Step) -> float:
        rows = self._crops.training(step.rows, step.turn)
        kernels.pad(step.dense, self._classes, self._padded)
        losses = kernels.gradient(
            self._padded, rows.pixels, rows.labels, self._classes, self._drawn, self._scores, self._others, self._sums
        )
        kernels.unpad(self._sums, self._classes, step.dense_sums)
        return losses

    def scores(self, values: Floats, rows: Images) -> Floats:
        rows = self._crops.testing(rows)
        kernels.pad(values, self._classes, self._padded)
        out = np.empty((rows.num_rows, self._length), np.float32)
        kernels.score_rows(self._padded, rows.pixels, self._drawn, self._others, out)
        return out[:, : self._classes]

    def losses(self, scores: Floats, labels: NDArray[np.uint16]) -> float:
        return cross_entropy(scores, labels)


def make_network(entry: Entry, config: RunConfig, settings: ImageSettings) -> Softmax:
    """Softmax regression for these images, for one worker."""
    return Softmax(Crops(settings.images, settings.shape, config.seed), settings.classes)


def shapes_of(entry: Entry, settings: ImageSettings) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors."""
    features = math.prod(Crops(settings.images, settings.shape, 0).shape)
    return {"weight": (features, settings.classes), "bias": (settings.classes,)}


def _on_lines(size: int) -> Floats:
    """Zeros that begin with a cache line: a vector of sixteen then never lies across two."""
    room = np.zeros(size + kernels.LANES, np.float32)
    start = -room.ctypes.data // room.itemsize % kernels.LANES
    return room[start : start + size]
