"""What do images look like in memory, and how does a block of them lie on disk?

A block of images is an Arrow IPC file with the columns `label` (uint16) and `pixels` (so many bytes a row), written
and checked as a block of rows is.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from paceline.data.blocks import files as block_files
from paceline.data.blocks.files import AGAIN, BlockInfo, read_table, write_table
from paceline.data.blocks.folders import Folder
from paceline.errors import DataError

# Small enough that an epoch has many blocks to shuffle, large enough that opening one does not count.
BLOCK_BYTES = 16 << 20


class Images(NamedTuple):
    """Rows of images: `pixels` uint8 [n, features], each row an image's height × width × channels in that order, and
    `labels` uint16 [n].

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


def rows_a_block(features: int) -> int:
    """How many images a block holds."""
    return min(block_files.BLOCK_ROWS, max(1, BLOCK_BYTES // features))


def write_images(path: Path, images: Images) -> BlockInfo:
    """Write one block file."""
    rows, features = images.pixels.shape
    pixels = pa.FixedSizeBinaryArray.from_buffers(pa.binary(features), rows, [None, pa.py_buffer(images.pixels)])
    table = pa.record_batch([pa.array(images.labels), pixels], _schema(features))
    return BlockInfo(path.name, rows, 0, 0, write_table(path, table))


def read_images(folder: Folder, info: BlockInfo, features: int, classes: int) -> Images:
    """Map one block file and check it against the manifest: models trust sizes and labels."""
    table = read_table(folder, info)
    mismatch = f"block `{folder}/{info.file}` does not match the manifest"
    if table.schema != _schema(features):
        columns = ", ".join(f"{column.name} {column.type}" for column in table.schema)
        raise DataError(f"{mismatch}: its columns are {columns}, not a label and {features} bytes", AGAIN)
    if table.num_rows != info.rows:
        raise DataError(f"{mismatch}: {table.num_rows} rows instead of {info.rows}", AGAIN)
    content = np.frombuffer(table.column("pixels").buffers()[1], np.uint8, info.rows * features)
    images = Images(content.reshape(info.rows, features), table.column("label").to_numpy())
    largest = int(images.labels.max(initial=0))
    if largest >= classes:
        raise DataError(f"{mismatch}: label {largest} is not below its {classes} classes", AGAIN)
    return images


def _schema(features: int) -> pa.Schema:
    return pa.schema([("label", pa.uint16()), ("pixels", pa.binary(features))])


class OpenImages:
    """The images of a block that is not full yet, in arrays that are used again for the next one."""

    def __init__(self, features: int) -> None:
        self._features = features
        self._images = Images(np.empty((0, features), np.uint8), np.empty(0, np.uint16))
        self._num_rows = 0

    @property
    def rows(self) -> Images:
        """The images so far, sharing memory."""
        return self._images.slice(0, self._num_rows)

    def take(self, batch: Images) -> int:
        """Copy as many of the images as the block has room for; how many that were."""
        if not self._images.num_rows:
            room = rows_a_block(self._features)
            self._images = Images(np.empty((room, self._features), np.uint8), np.empty(room, np.uint16))
        start = self._num_rows
        count = min(batch.num_rows, self._images.num_rows - start)
        self._images.pixels[start : start + count] = batch.pixels[:count]
        self._images.labels[start : start + count] = batch.labels[:count]
        self._num_rows += count
        return count

    def clear(self) -> None:
        self._num_rows = 0
