"""Where do the values of a model live that is trained on a GPU? There, with what the optimizer remembers of them.

The same updates as `optimizers/dense.py`, as operations on whole tensors; and the training images beside them, where
there is room.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.config import RunConfig
from paceline.data.images.dataset import ImageDataset, ImageReader, Images
from paceline.data.rows import EpochOrder
from paceline.models.dense import DenseModel, num_values
from paceline.parameters.optimizers.dense import UpdateCount, num_planes
from paceline.parameters.optimizers.sgd import rate_at
from paceline.torch.model import import_torch

Floats = NDArray[np.float32]

# Of the GPU's free memory, images may take this share.
SHARE_FOR_IMAGES = 0.4


class TorchTable:
    """All values of a model on a GPU: `planes` [width, values]. As `DenseTable` has it, with tensors for arrays."""

    def __init__(self, config: RunConfig, model: DenseModel, count: UpdateCount) -> None:
        self._torch = import_torch()
        self._settings = config.optimizer
        self._num_trained = model.num_trained
        self._count = count
        shape = (num_planes(config.optimizer), num_values(model))
        self._planes = self._torch.zeros(shape, device=config.device)

    @property
    def values(self) -> Any:
        return self._planes[0]

    @property
    def states(self) -> Floats:
        """As checkpoints have them, [values, width]; a copy."""
        states: Floats = self._planes.T.cpu().numpy()
        return states

    def begin(self, values: Floats) -> None:
        """Stand where a run begins."""
        self._planes.zero_()
        self._planes[0].copy_(self._torch.from_numpy(values))

    def load(self, states: Floats, start: int = 0) -> None:
        """Put states [n, width] in place from value `start` on."""
        own = self._torch.from_numpy(np.ascontiguousarray(states.T))
        self._planes[:, start : start + len(states)].copy_(own)

    def part(self, start: int, stop: int) -> Floats:
        """States [n, width] of the values from `start` to `stop`, as they go over a wire."""
        return np.ascontiguousarray(self._planes[:, start:stop].cpu().numpy().T)

    def copy_of_values(self) -> Floats:
        values: Floats = self._planes[0].cpu().numpy()
        return values

    def make_sums(self, count: int) -> Any:
        """Room for so many gradients."""
        return self._torch.zeros((count, self._planes.shape[1]), device=self._planes.device)

    def copy_values_to(self, own: Any) -> None:
        own.copy_(self._planes[0])

    def add(self, total: Any, more: Any, first: int, stop: int) -> None:
        total[first:stop] += more[first:stop]

    def apply(self, sums: Any, rows: int, trained: int, first: int, stop: int) -> None:
        """Update the values from `first` to `stop` by gradients whose sums over the rows are given."""
        end = min(stop, self._num_trained)
        if first < end:
            self._descend(self._planes[:, first:end], sums[first:end], 1 / rows, trained)
        if end < stop:
            self._planes[0, max(first, end) : stop].sub_(sums[max(first, end) : stop], alpha=1 / rows)

    def _descend(self, planes: Any, sums: Any, scale: float, trained: int) -> None:
        settings, weights = self._settings, planes[0]
        rate = rate_at(settings, trained)
        gradient = sums * scale
        if settings.l2:
            gradient.add_(weights, alpha=settings.l2)
        if settings.name == "adagrad":
            planes[1].addcmul_(gradient, gradient)
            weights.addcdiv_(gradient, planes[1].sqrt().add_(settings.epsilon), value=-rate)
        elif settings.name == "adam":
            update = self._count.number(trained)
            planes[1].lerp_(gradient, 1 - settings.beta1)
            planes[2].mul_(settings.beta2).addcmul_(gradient, gradient, value=1 - settings.beta2)
            root = math.sqrt(1 - settings.beta2**update)
            below = planes[2].sqrt().div_(root).add_(settings.epsilon)
            weights.addcdiv_(planes[1], below, value=-rate / (1 - settings.beta1**update))
        elif settings.momentum:
            planes[1].mul_(settings.momentum).add_(gradient)
            weights.sub_(planes[1], alpha=rate)
        else:
            weights.sub_(gradient, alpha=rate)


class ResidentReader:
    """One worker's view of training images that are on the GPU, all of them."""

    def __init__(self, pixels: Any, labels: Any, dataset: ImageDataset, order: EpochOrder) -> None:
        self._torch = import_torch()
        self._pixels = pixels
        self._labels = labels
        self._order = order
        starts = np.cumsum([0, *(block.rows for block in dataset.split("train").blocks)])
        self._starts = starts

    def between(self, start: int, stop: int) -> Images:
        return self.batch(np.arange(start, stop))

    def batch(self, positions: NDArray[np.int64]) -> Images:
        """The rows at ascending positions of an epoch."""
        rows = [self._starts[segment.block] + segment.rows for segment in self._order.segments(positions)]
        places = np.concatenate(rows) if rows else np.zeros(0, np.int64)
        chosen = self._torch.from_numpy(places).to(self._pixels.device, non_blocking=True)
        return Images(self._pixels[chosen], self._labels[chosen])


def make_readers(config: RunConfig, dataset: ImageDataset, order: EpochOrder, count: int) -> list[Any]:
    """A reader a worker: of images on the GPU where there is room and they are taken as they are, else of blocks."""
    room = SHARE_FOR_IMAGES * import_torch().cuda.mem_get_info()[0]
    if config.images.crop or config.images.flip or dataset.split("train").rows * dataset.features > room:
        return [ImageReader(dataset, order) for _ in range(count)]
    return resident_readers(dataset, order, count, config.device)


def resident_readers(dataset: ImageDataset, order: EpochOrder, count: int, device: str) -> list[ResidentReader]:
    """So many readers of all training images, which are brought to a device."""
    torch = import_torch()
    blocks = dataset.split("train").blocks
    rows = sum(block.rows for block in blocks)
    pixels = torch.empty((rows, dataset.features), dtype=torch.uint8, device=device)
    labels = torch.empty(rows, dtype=torch.int64, device=device)
    start = 0
    for index in range(len(blocks)):
        block = dataset.block("train", index)
        stop = start + blocks[index].rows
        pixels[start:stop].copy_(torch.from_numpy(block.pixels[: stop - start].copy()))
        labels[start:stop].copy_(torch.from_numpy(block.labels[: stop - start].astype(np.int64)))
        start = stop
    return [ResidentReader(pixels, labels, dataset, order) for _ in range(count)]
