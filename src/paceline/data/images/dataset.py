"""How do images lie on disk, how are they written, and how does a worker read them?

A dataset of images is a folder like one of rows: `manifest.json`, which names its kind, and blocks. Images are bytes,
all of one shape; a label is a class's number.
"""

from __future__ import annotations

import threading
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal, get_args

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from paceline.data.blocks.files import BlockWriter, SplitInfo, first_rows
from paceline.data.blocks.folders import open_folder
from paceline.data.blocks.manifests import IMAGES, put_in_place, read_manifest
from paceline.data.blocks.partial import PartialFolder
from paceline.data.images.blocks import Images as Images
from paceline.data.images.blocks import OpenImages, read_images, write_images
from paceline.data.rows import BlockRows, EpochOrder
from paceline.data.sparse.dataset import Split
from paceline.data.sparse.key_order import KeyOrder
from paceline.errors import DataError
from paceline.files import refuse_existing, translated_disk_errors

FORMAT_VERSION = 1
MOST_CLASSES = 1 << 16  # labels are 16 bits
MOST_FEATURES = 64 << 20  # bytes of an image

Shape = tuple[int, int, int]
Positive = Annotated[int, msgspec.Meta(ge=1)]


class ImageManifest(msgspec.Struct, frozen=True):
    """What a dataset of images says of itself. `shape` is height, width, channels; `source` tells how it was made."""

    kind: Literal["images"]
    shape: tuple[Positive, Positive, Positive]
    classes: Positive
    class_names: list[str]
    train: SplitInfo
    test: SplitInfo
    source: dict[str, Any]
    version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        if len(self.class_names) != self.classes:
            raise ValueError(f"{len(self.class_names)} class names for {self.classes} classes")


class ImageDataset:
    """A dataset of images on disk, opened: `block` maps a block into memory and verifies it the first time."""

    def __init__(self, path: Path | str) -> None:
        self.folder = open_folder(path)
        self.manifest = read_manifest(self.folder, IMAGES, FORMAT_VERSION, ImageManifest)
        self._blocks: dict[tuple[Split, int], Images] = {}
        self._lock = threading.Lock()
        self._train = self.manifest.train

    @property
    def shape(self) -> Shape:
        """Height, width and channels of every image."""
        return self.manifest.shape

    @property
    def classes(self) -> int:
        return self.manifest.classes

    @cached_property
    def features(self) -> int:
        """The bytes of an image."""
        height, width, channels = self.shape
        return height * width * channels

    @cached_property
    def fingerprint(self) -> str:
        """Which data this is: equal for datasets of equal shape, classes and blocks."""
        digest = xxhash.xxh3_64(f"{IMAGES} {self.shape} {self.classes}\n".encode())
        for split in get_args(Split):
            digest.update(f"{split}\n".encode())
            for block in self.split(split).blocks:
                digest.update(f"{block.checksum}\n".encode())
        return digest.hexdigest()

    def split(self, split: Split) -> SplitInfo:
        return self._train if split == "train" else self.manifest.test

    def keep_first(self, rows: int) -> None:
        """Let the training rows be the first so many alone."""
        self._train = first_rows(self.manifest.train, rows)

    @cached_property
    def key_order(self) -> KeyOrder:
        """Pixels keep their order: every key stays as it is."""
        return KeyOrder(np.zeros(0, np.uint64))

    def block(self, split: Split, index: int) -> Images:
        """The images of one block, mapped and read-only."""
        found = self._blocks.get((split, index))
        if found is None:
            info = self.manifest.train if split == "train" else self.manifest.test
            found = read_images(self.folder, info.blocks[index], self.features, self.classes)
            with self._lock:
                found = self._blocks.setdefault((split, index), found)
        return found


class ImageWriter:
    """Writes a dataset of images, block by block, in bounded memory. Use it as a context, as `DatasetWriter`: an
    exception leaves nothing behind, and `finish` renames the folder into place.
    """

    def __init__(self, out: Path | str, *, shape: Shape, class_names: list[str], source: dict[str, Any]) -> None:
        self.out = Path(out)
        self._shape = shape
        self._class_names = class_names
        self._source = source
        self._features = check_shape(shape)
        if not 1 <= len(class_names) <= MOST_CLASSES:
            raise DataError(f"there are {len(class_names):,} classes; labels tell 1 to {MOST_CLASSES:,}", "merge some")
        refuse_existing(self.out)
        self._partial = PartialFolder(self.out)
        open_block = partial(OpenImages, self._features)
        self._blocks: dict[Split, BlockWriter[Images]] = {
            split: BlockWriter(self._partial.path, split, open_block, write_images) for split in get_args(Split)
        }

    def __enter__(self) -> ImageWriter:
        with translated_disk_errors(self.out):
            self._partial.make()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for blocks in self._blocks.values():
            blocks.close()
        self._partial.remove()

    def add(self, split: Split, images: Images) -> None:
        """Append images to a split, in order; they are copied. Raises for labels that are none of the classes."""
        if not images.num_rows:
            return
        if images.pixels.shape != (images.num_rows, self._features):
            raise DataError(
                f"images of {images.pixels.shape} bytes for {images.num_rows} labels; "
                f"{images.num_rows} × {self._features} were expected",
                "pixels are [rows, height · width · channels]",
            )
        largest = int(images.labels.max())
        if largest >= len(self._class_names):
            raise DataError(
                f"label {largest} is none of the {len(self._class_names)} classes", "labels count the classes from 0"
            )
        self._blocks[split].append(images)

    def finish(self) -> ImageDataset:
        """Write what is pending and the manifest, and move the folder into place."""
        train, test = self._blocks["train"].finish(), self._blocks["test"].finish()
        if not train.rows:
            raise DataError("the input holds no training rows", "check the paths, and that --test-fraction leaves some")
        manifest = ImageManifest(
            kind="images",
            shape=self._shape,
            classes=len(self._class_names),
            class_names=self._class_names,
            train=train,
            test=test,
            source=self._source,
        )
        put_in_place(self._partial, manifest)
        return ImageDataset(self.out)


def check_shape(shape: Shape) -> int:
    """The bytes of an image, or an error if there are none or too many."""
    height, width, channels = shape
    num_bytes = height * width * channels
    if min(shape) < 1 or num_bytes > MOST_FEATURES:
        raise DataError(
            f"images of {height} × {width} × {channels} bytes; they have 1 to {MOST_FEATURES >> 20} MiB",
            "scale them down: --size 256 does for folders of images",
        )
    return num_bytes


class ImageReader:
    """One worker's view of the training images, in the order of `order`. Not shared between threads: what a call
    returns is valid until the next one.
    """

    def __init__(self, dataset: ImageDataset, order: EpochOrder) -> None:
        self._dataset = dataset
        self._order = order
        self._last = BlockRows(0, 0, 0, np.zeros(0, np.int32))
        self._buffer = Images(np.empty((0, dataset.features), np.uint8), np.empty(0, np.uint16))

    def batch(self, positions: NDArray[np.int64]) -> Images:
        """The images at ascending positions of an epoch one behind the other."""
        return self._copy([(segment.block, segment.rows) for segment in self._order.segments(positions)])

    def between(self, start: int, stop: int) -> Images:
        """The images at all positions from `start` up to `stop`, which may lie in several blocks and epochs."""
        found, at = [], start
        while at < stop:
            if not self._last.start <= at < self._last.stop:
                self._last = self._order.block_at(at)
            block, first, end, rows = self._last
            until = min(stop, end)
            found.append((block, rows[at - first : until - first]))
            at = until
        return self._copy(found)

    def _copy(self, found: list[tuple[int, NDArray[np.int32]]]) -> Images:
        num_rows = sum(len(rows) for _, rows in found)
        if num_rows > self._buffer.num_rows:
            self._buffer = Images(np.empty((num_rows, self._dataset.features), np.uint8), np.empty(num_rows, np.uint16))
        filled = 0
        for block, rows in found:
            images, into = self._dataset.block("train", block), self._buffer.slice(filled, filled + len(rows))
            # `clip` only because numpy copies twice otherwise: no row is beyond its block.
            np.take(images.pixels, rows, axis=0, out=into.pixels, mode="clip")
            np.take(images.labels, rows, out=into.labels, mode="clip")
            filled += len(rows)
        return self._buffer.slice(0, num_rows)
