"""What do images look like in memory, how is a block of them stored on disk, and how do they reach a worker's buffer?

A block of images is an Arrow IPC file with the columns `label` (uint16) and `pixels` (a fixed number of bytes per row).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from paceline.data.blocks import files as block_files
from paceline.data.blocks.dataset import Manifest
from paceline.data.blocks.files import BlockInfo, check_below, read_table, write_table
from paceline.data.blocks.folders import Folder
from paceline.data.labels import Labels

# Small enough that an epoch has many blocks to shuffle, large enough that opening one costs little.
BLOCK_BYTES = 16 << 20


Shape = tuple[int, int, int]
Positive = Annotated[int, msgspec.Meta(ge=1)]


class ImageManifest(Manifest, frozen=True):
    """The manifest of a dataset of images. `shape` is height, width, channels."""

    kind: Literal["images"]
    shape: tuple[Positive, Positive, Positive]
    classes: Positive
    class_names: list[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.class_names) != self.classes:
            raise ValueError(f"{len(self.class_names)} class names for {self.classes} classes")

    @property
    def features(self) -> int:
        """The bytes of an image."""
        return math.prod(self.shape)

    @property
    def labels(self) -> Labels:
        return Labels("classes", tuple(self.class_names))


class Images(NamedTuple):
    """Images: `pixels` uint8 [n, features], each row an image's height × width × channels in that order, and `labels`
    uint16 [n].

    Images have no weights.

    >>> images = Images(np.zeros((3, 4), np.uint8), np.array([2, 0, 1], np.uint16))
    >>> images.slice(1, 3).labels.tolist(), images.select(images.labels > 0).labels.tolist()
    ([0, 1], [2, 1])
    """

    pixels: NDArray[np.uint8]
    labels: NDArray[np.uint16]

    @property
    def weights(self) -> None:
        return None

    @property
    def num_rows(self) -> int:
        return len(self.labels)

    def with_labels(self, labels: NDArray[np.uint16]) -> Images:
        return self._replace(labels=labels)

    def slice(self, start: int, stop: int) -> Images:
        """Rows `start` up to `stop`, sharing memory."""
        return Images(self.pixels[start:stop], self.labels[start:stop])

    def select(self, mask: NDArray[np.bool_]) -> Images:
        """The rows where `mask` (bool [n]) holds, copied."""
        return Images(self.pixels[mask], self.labels[mask])


def fits(images: Images, block: list[Images]) -> int:
    """How many of `images` still fit into a block that holds others."""
    most: int = min(block_files.BLOCK_ROWS, max(1, BLOCK_BYTES // images.pixels.shape[1]))
    return min(images.num_rows, most - sum(others.num_rows for others in block))


def write_images(path: Path, block: list[Images]) -> BlockInfo:
    """Write one block file."""
    content = np.concatenate([images.pixels for images in block])
    rows, features = content.shape
    pixels = pa.FixedSizeBinaryArray.from_buffers(pa.binary(features), rows, [None, pa.py_buffer(content)])
    labels = pa.array(np.concatenate([images.labels for images in block]))
    return BlockInfo(path.name, rows, 0, 0, write_table(path, pa.record_batch([labels, pixels], _schema(features))))


def read_images(folder: Folder, info: BlockInfo, manifest: ImageManifest) -> Images:
    """Map one block file and check it against the manifest: models trust sizes and labels."""
    features = manifest.features
    table = read_table(folder, info, _schema(features))
    content = np.frombuffer(table.column("pixels").buffers()[1], np.uint8, info.rows * features)
    images = Images(content.reshape(info.rows, features), table.column("label").to_numpy())
    check_below(folder, info, "label", images.labels, manifest.classes, "classes")
    return images


def _schema(features: int) -> pa.Schema:
    return pa.schema([("label", pa.uint16()), ("pixels", pa.binary(features))])


class ImageBuffer:
    """Where a reader copies the images that it was asked for; reused by the next call."""

    def __init__(self, features: int) -> None:
        self._images = Images(np.empty((0, features), np.uint8), np.empty(0, np.uint16))

    def copy(self, found: list[tuple[Images, NDArray[np.int32]]], num_rows: int) -> Images:
        """Copy the chosen images of blocks one after the other."""
        if num_rows > self._images.num_rows:
            features = self._images.pixels.shape[1]
            self._images = Images(np.empty((num_rows, features), np.uint8), np.empty(num_rows, np.uint16))
        filled = 0
        for images, rows in found:
            into = self._images.slice(filled, filled + len(rows))
            # `clip` only because numpy copies twice otherwise: no row is beyond its block.
            np.take(images.pixels, rows, axis=0, out=into.pixels, mode="clip")
            np.take(images.labels, rows, out=into.labels, mode="clip")
            filled += len(rows)
        return self._images.slice(0, num_rows)
