"""What is a dense model? One whose every value takes part in every row: all of them lie in one flat float32 array.

The first `num_trained` values are trained. Those behind are what a model keeps count of while it trains, such as the
averages of batch normalisation: for them a "gradient" is how far they have moved, and they follow the mean of what the
workers saw.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.config import RunConfig
from paceline.data.images.crops import Crops
from paceline.data.images.dataset import ImageDataset, Images
from paceline.data.sparse.dataset import Split

Floats = NDArray[np.float32]


class Tensor(NamedTuple):
    """One named tensor of a model, where it lies among the values, and as what kind of number it is saved."""

    name: str
    shape: tuple[int, ...]
    start: int
    dtype: str = "float32"

    @property
    def stop(self) -> int:
        return self.start + int(np.prod(self.shape, dtype=np.int64))

    def of(self, values: Floats) -> Floats:
        """This tensor in an array of all values: a view."""
        return values[self.start : self.stop].reshape(self.shape)


class DenseModel(Protocol):
    """A model as one worker has it: it computes from values that are kept elsewhere. Not shared between threads."""

    tensors: tuple[Tensor, ...]
    """All of its values, those that are trained first."""
    aliases: dict[str, str]
    """Further names of tensors that have several, to the first of them."""
    num_trained: int
    shares_threads: bool
    """Whether it computes on several threads by itself, so that workers had better take turns."""
    holds_values: bool
    """Whether it looks at the values all the while it computes, and not only at first."""
    filled: Callable[[int], None] | None
    """Where set, called by `gradient` with the number of a tensor when its part of `out` is complete before the others
    are; of those that it is not called with, nothing is known before `gradient` returns.
    """

    def initial(self, seed: int) -> Floats:
        """The values that training begins with."""

    def gradient(self, values: Floats, rows: Images, out: Floats, turn: tuple[int, int]) -> float:
        """The sums of the rows' gradients into `out`, and the sum of their losses.

        `turn`, a rank and the first row's position, decides whatever is random in it.
        """

    def scores(self, values: Floats, rows: Images) -> Floats:
        """A score for each row and class [rows, classes]; the highest is the class."""

    def losses(self, scores: Floats, labels: NDArray[np.uint16]) -> float:
        """The sum of the losses of rows with these scores and labels."""

    def use_threads(self, count: int) -> None:
        """Compute on so many threads, at least one, where it shares its work out by itself."""

    def close(self) -> None:
        """Let go of whatever it holds."""


def fingerprint(model: DenseModel) -> str:
    """What tells models with other tensors apart, in short."""
    digest = hashlib.sha256(repr([tuple(tensor) for tensor in model.tensors]).encode()).hexdigest()[:8]
    return f"{len(model.tensors)} tensors of {num_values(model):,} values ({digest})"


class ClassQuality(NamedTuple):
    """How good predictions of classes are: the mean of the model's loss, share of wrong classes, and of right ones."""

    loss: float
    error: float
    accuracy: float


def build_model(config: RunConfig, shape: tuple[int, int, int], classes: int) -> DenseModel:
    """The model that a run trains, for images of this shape and so many classes."""
    crops = Crops(config.images, shape, config.seed)
    if config.model == "softmax":
        from paceline.models.softmax import Softmax

        return Softmax(crops, classes)
    from paceline.torch.model import TorchModel

    return TorchModel(config, crops, classes)


def num_values(model: DenseModel) -> int:
    return model.tensors[-1].stop


def scores_by_part(
    model: DenseModel, values: Floats, dataset: ImageDataset, split: Split, part_rows: int
) -> Iterator[tuple[Images, Floats]]:
    """The rows of a split in order, some at a time, with their scores."""
    for index in range(len(dataset.split(split).blocks)):
        block = dataset.block(split, index)
        for start in range(0, block.num_rows, part_rows):
            rows = Images(block.pixels[start : start + part_rows], block.labels[start : start + part_rows])
            yield rows, model.scores(values, rows)


def evaluate_classes(
    model: DenseModel, values: Floats, dataset: ImageDataset, split: Split, stop: Callable[[], bool]
) -> ClassQuality | None:
    """Loss and accuracy over all rows of a split, which has some; None where `stop` said so on the way."""
    losses, right, num_rows = 0.0, 0, 0
    for rows, scores in scores_by_part(model, values, dataset, split, PART_ROWS):
        if stop():
            return None
        losses += model.losses(scores, rows.labels)
        right += int((scores.argmax(axis=1) == rows.labels).sum())
        num_rows += rows.num_rows
    return ClassQuality(losses / num_rows, 1 - right / num_rows, right / num_rows)


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


PART_ROWS = 256
