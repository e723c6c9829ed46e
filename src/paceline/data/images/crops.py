"""What do workers see of an image? All of it, or a square: from anywhere in training, from the middle in tests."""

from __future__ import annotations

import math

import numpy as np

from paceline.data.images.blocks import Images
from paceline.errors import ConfigError, DataError
from paceline.settings import ImageConfig


class Crops:
    """Cuts and mirrors images of a `full` shape; `shape` is what comes out: height, width, channels."""

    def __init__(self, settings: ImageConfig, full: tuple[int, int, int], seed: int) -> None:
        self._full = full
        self._size, self._flip, self._seed = settings.crop, settings.flip, seed
        if self._size > min(full[:2]):
            raise ConfigError(
                f"`images.crop` is {self._size}, but the images have {full[0]} × {full[1]} pixels",
                f"--set images.crop={min(full[:2])}, or 0 for the whole image",
            )
        self.shape = (self._size, self._size, full[2]) if self._size else full

    def training(self, rows: Images, turn: tuple[int, int]) -> Images:
        """Images to learn from; `turn`, a rank and the first row's position, decides what is random."""
        self._check(rows)
        if not (self._size or self._flip):
            return rows
        chance = np.random.default_rng([self._seed, *turn])
        height, width, channels = self.shape
        tops = chance.integers(0, self._full[0] - height + 1, rows.num_rows)
        lefts = chance.integers(0, self._full[1] - width + 1, rows.num_rows)
        mirrored = chance.integers(0, 2, rows.num_rows) if self._flip else np.zeros(rows.num_rows, np.int64)
        images = rows.pixels.reshape(-1, *self._full)
        out = np.empty((rows.num_rows, height, width, channels), np.uint8)
        for i in range(rows.num_rows):
            cut = images[i, tops[i] : tops[i] + height, lefts[i] : lefts[i] + width]
            out[i] = cut[:, ::-1] if mirrored[i] else cut
        return Images(out.reshape(rows.num_rows, height * width * channels), rows.labels)

    def testing(self, rows: Images) -> Images:
        """Images to test on."""
        self._check(rows)
        if not self._size:
            return rows
        height, width, channels = self.shape
        top, left = (self._full[0] - height) // 2, (self._full[1] - width) // 2
        images = rows.pixels.reshape(-1, *self._full)[:, top : top + height, left : left + width]
        return Images(np.ascontiguousarray(images).reshape(rows.num_rows, height * width * channels), rows.labels)

    def _check(self, rows: Images) -> None:
        """Compiled loops trust that images are as large as they were said to be."""
        if rows.pixels.shape[1] != math.prod(self._full):
            raise DataError(f"images of {rows.pixels.shape[1]} bytes where {math.prod(self._full)} were expected")
