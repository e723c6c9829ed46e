"""Training images that are all on the GPU, if there is room."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.data.blocks.reader import Reader
from paceline.data.images.blocks import Images
from paceline.data.images.dataset import ImageDataset
from paceline.data.rows import EpochOrder
from paceline.settings import RunConfig
from paceline.torch.model import torch

# Of the GPU's free memory, images may take this share.
SHARE_FOR_IMAGES = 0.4


class ResidentReader(NamedTuple):
    """Reads training images that are all on the GPU; `starts` are those of the blocks. Threads may share it."""

    pixels: Any
    labels: Any
    starts: NDArray[np.int64]
    order: EpochOrder

    def between(self, start: int, stop: int) -> Images:
        rows = [self.starts[block] + found for block, found in self.order.between(start, stop)]
        places = np.concatenate(rows) if rows else np.zeros(0, np.int64)
        chosen = torch.from_numpy(places).to(self.pixels.device, non_blocking=True)
        return Images(self.pixels[chosen], self.labels[chosen])


def make_readers(config: RunConfig, dataset: ImageDataset, order: EpochOrder, count: int) -> list[Any]:
    """One reader per worker: of images on the GPU if they fit and are used whole, otherwise of blocks."""
    room = SHARE_FOR_IMAGES * torch.cuda.mem_get_info()[0]
    if config.images.crop or config.images.flip or dataset.split("train").rows * dataset.features > room:
        return [Reader(dataset, order) for _ in range(count)]
    return [resident_reader(dataset, order, config.device)] * count


def resident_reader(dataset: ImageDataset, order: EpochOrder, device: str) -> ResidentReader:
    """A reader of all training images, which are copied to a device."""
    starts = np.cumsum([0, *(block.rows for block in dataset.split("train").blocks)])
    pixels = torch.empty((starts[-1], dataset.features), dtype=torch.uint8, device=device)
    labels = torch.empty(starts[-1], dtype=torch.int64, device=device)
    for index, (start, stop) in enumerate(pairwise(starts.tolist())):
        block = dataset.block("train", index)
        pixels[start:stop].copy_(torch.from_numpy(block.pixels[: stop - start].copy()))
        labels[start:stop].copy_(torch.from_numpy(block.labels[: stop - start].astype(np.int64)))
    return ResidentReader(pixels, labels, starts, order)
