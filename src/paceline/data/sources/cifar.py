"""How are CIFAR-10's binary files read?

A row is 3,073 bytes: a label from 0 to 9, then the image as three planes of 32 × 32, red, green and blue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.data.blocks.dataset import Split
from paceline.data.images.blocks import Images, Shape
from paceline.data.sources.files import Chunk, Source, cut_at_rows
from paceline.errors import DataError

SIDE, CHANNELS = 32, 3
ROW_BYTES = 1 + SIDE * SIDE * CHANNELS
CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


class Cifar:
    """Files of CIFAR-10, one after the other."""

    shape: Shape = (SIDE, SIDE, CHANNELS)
    notes: tuple[str, ...] = ()

    def __init__(self, train: list[Source], test: list[Source], validation: list[Source]) -> None:
        self._files: dict[Split, list[Source]] = {"train": train, "validation": validation, "test": test}
        self.class_names = list(CLASS_NAMES)
        self.settings: dict[str, Any] = {}

    def read(self, split: Split) -> Iterator[tuple[Images, int]]:
        for source in self._files[split]:
            before = 0
            for chunk in cut_at_rows(source, lambda content: len(content) // ROW_BYTES * ROW_BYTES):
                yield parse_rows(chunk), chunk.bytes_read - before
                before = chunk.bytes_read


def parse_rows(chunk: Chunk[NDArray[np.uint8]]) -> Images:
    """The images of a chunk, with the channels of a pixel side by side."""
    first = chunk.start // ROW_BYTES + 1
    num_rows, rest = divmod(len(chunk.content), ROW_BYTES)
    if rest:
        raise DataError(
            f"`{chunk.source.name}`, row {first + num_rows}: it ends after {rest} of {ROW_BYTES} bytes",
            "it is cut short, or not a binary file of CIFAR-10: fetch it again",
        )
    rows = chunk.content.reshape(num_rows, ROW_BYTES)
    beyond = np.flatnonzero(rows[:, 0] >= len(CLASS_NAMES))
    if len(beyond):
        raise DataError(
            f"`{chunk.source.name}`, row {first + beyond[0]}: label {rows[beyond[0], 0]} is not one of the "
            f"{len(CLASS_NAMES)} classes, 0 to {len(CLASS_NAMES) - 1}",
            "check that it is a binary file of CIFAR-10",
        )
    planes = rows[:, 1:].reshape(num_rows, CHANNELS, SIDE * SIDE)
    return Images(planes.transpose(0, 2, 1).reshape(num_rows, -1), rows[:, 0].astype(np.uint16))
