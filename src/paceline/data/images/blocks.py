"""What do images look like in memory, how is a block of them stored on disk, and how do they reach a worker's buffer?

A block of images is an Arrow IPC file with the columns `label` (uint16) and `pixels` (a fixed number of bytes per row).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from paceline.data.blocks import files as block_files
from paceline.data.blocks.dataset import Manifest
from paceline.data.blocks.files import AGAIN, BlockInfo, read_table, write_table
from paceline.data.blocks.folders import Folder
from paceline.errors import DataError

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
        if len(self.class_names) != self.classes:
            raise ValueError(f"{len(self.class_names)} class names for {self.classes} classes")

    @property
    def features(self) -> int:
        """The bytes of an image."""
        height, width, channels = self.shape
        return height * width * channels


class Images(NamedTuple):
    """Images: `pixels` uint8 [n, features], each row an image's height × width × channels in that order, and `labels`
    uint16 [n].

    >>> images = Images(np.zeros((3, 4), np.uint8), np.array([2, 0, 1], np.uint16))
    >>> images.slice(1, 3).labels.tolist(), images.select(images.labels > 0).labels.tolist()
    ([0, 1], [2, 1])
    """

    pixels: NDArray[np.uint8]
    labels: NDArray[np.uint16]

    @property
    def num_rows(self) -> int:
        return len(self.labels)

    def slice(self, start: int, stop: int) -> Images:
        """Rows `start` up to `stop`, sharing memory."""
        return Images(self.pixels[start:stop], self.labels[start:stop])

    def select(self, mask: NDArray[np.bool_]) -> Images:
        """The rows where `mask` (bool [n]) holds, copied."""
        return Images(self.pixels[mask], self.labels[mask])


def rows_per_block(features: int) -> int:
    """How many images a block holds."""
    return min(block_files.BLOCK_ROWS, max(1, BLOCK_BYTES // features))


def write_images(path: Path, images: Images) -> BlockInfo:
    """Write one block file."""
    rows, features = images.pixels.shape
    pixels = pa.FixedSizeBinaryArray.from_buffers(pa.binary(features), rows, [None, pa.py_buffer(images.pixels)])
    table = pa.record_batch([pa.array(images.labels), pixels], _schema(features))
    return BlockInfo(path.name, rows, 0, 0, write_table(path, table))


def read_images(folder: Folder, info: BlockInfo, manifest: ImageManifest) -> Images:
    """Map one block file and check it against the manifest: models trust sizes and labels."""
    table, features = read_table(folder, info), manifest.features
    mismatch = f"block `{folder}/{info.file}` does not match the manifest"
    if table.schema != _schema(features):
        columns = ", ".join(f"{column.name} {column.type}" for column in table.schema)
        raise DataError(f"{mismatch}: its columns are {columns}, not a label and {features} bytes", AGAIN)
    if table.num_rows != info.rows:
        raise DataError(f"{mismatch}: {table.num_rows} rows instead of {info.rows}", AGAIN)
    content = np.frombuffer(table.column("pixels").buffers()[1], np.uint8, info.rows * features)
    images = Images(content.reshape(info.rows, features), table.column("label").to_numpy())
    largest = int(images.labels.max(initial=0))
    if largest >= manifest.classes:
        raise DataError(f"{mismatch}: label {largest} is not below its {manifest.classes} classes", AGAIN)
    return images


def _schema(features: int) -> pa.Schema:
    return pa.schema([("label", pa.uint16()), ("pixels", pa.binary(features))])


class OpenImages:
    """The images of a block that is not full yet, in arrays that the next block reuses."""

    def __init__(self, features: int) -> None:
        self._features = features
        self._images = Images(np.empty((0, features), np.uint8), np.empty(0, np.uint16))
        self._num_rows = 0

    @property
    def rows(self) -> Images:
        """The images so far, sharing memory."""
        return self._images.slice(0, self._num_rows)

    def take(self, batch: Images) -> int:
        """Copy as many of the images as the block has room for; returns how many."""
        if not self._images.num_rows:
            room = rows_per_block(self._features)
            self._images = Images(np.empty((room, self._features), np.uint8), np.empty(room, np.uint16))
        start = self._num_rows
        count = min(batch.num_rows, self._images.num_rows - start)
        self._images.pixels[start : start + count] = batch.pixels[:count]
        self._images.labels[start : start + count] = batch.labels[:count]
        self._num_rows += count
        return count

    def clear(self) -> None:
        self._num_rows = 0


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
