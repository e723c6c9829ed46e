"""Training images that are all on the GPU, if there is room."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.data.blocks.reader import Reader
from paceline.data.images.blocks import Images
from paceline.data.images.dataset import ImageDataset
from paceline.data.rows import EpochOrder
from paceline.settings import RunConfig
from paceline.torch.model import import_torch

# Of the GPU's free memory, images may take this share.
SHARE_FOR_IMAGES = 0.4


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
        rows = [self._starts[block] + found for block, found in self._order.find(positions)]
        places = np.concatenate(rows) if rows else np.zeros(0, np.int64)
        chosen = self._torch.from_numpy(places).to(self._pixels.device, non_blocking=True)
        return Images(self._pixels[chosen], self._labels[chosen])


def make_readers(config: RunConfig, dataset: ImageDataset, order: EpochOrder, count: int) -> list[Any]:
    """One reader per worker: of images on the GPU if they fit and are used whole, otherwise of blocks."""
    room = SHARE_FOR_IMAGES * import_torch().cuda.mem_get_info()[0]
    if config.images.crop or config.images.flip or dataset.split("train").rows * dataset.features > room:
        return [Reader(dataset, order) for _ in range(count)]
    return resident_readers(dataset, order, count, config.device)


def resident_readers(dataset: ImageDataset, order: EpochOrder, count: int, device: str) -> list[ResidentReader]:
    """This many readers of all training images, which are copied to a device."""
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
