"""Datasets of images: bytes, all of one shape. A label is the number of a class."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paceline.data.blocks.dataset import Dataset, RowKind, Split
from paceline.data.blocks.files import SplitInfo
from paceline.data.blocks.writer import DatasetWriter
from paceline.data.images.blocks import ImageBuffer, ImageManifest, Images, Shape, fits, read_images, write_images
from paceline.data.labels import MOST_CLASSES
from paceline.errors import DataError

MOST_FEATURES = 64 << 20  # bytes of an image

IMAGE_ROWS = RowKind(
    name="images",
    made_by="`paceline prepare` reads IDX, CIFAR-10 and folders of images; `generate images` makes synthetic ones",
    manifest=ImageManifest,
    identity=lambda manifest: f"images {manifest.shape} {manifest.classes}",
    describe=lambda manifest: f"{' × '.join(map(str, manifest.shape))} bytes each, {manifest.classes:,} classes",
    read=read_images,
    fits=fits,
    write=write_images,
    buffer=lambda dataset: ImageBuffer(dataset.features),
)


class ImageDataset(Dataset[Images]):
    """A dataset of images; `shape` is the height, width and channels of each."""

    manifest: ImageManifest

    def __init__(self, path: Path | str) -> None:
        super().__init__(path, IMAGE_ROWS)
        self.shape: Shape = self.manifest.shape

    @property
    def classes(self) -> int:
        return self.labels.classes


def image_writer(
    out: Path | str, *, shape: Shape, class_names: list[str], source: dict[str, Any]
) -> DatasetWriter[Images, ImageDataset]:
    """A writer of images of one shape; labels count the classes from 0."""
    return DatasetWriter(out, IMAGE_ROWS, ImageIntake(shape, class_names, source), ImageDataset)


class ImageIntake:
    """Checks the size and the labels of images."""

    def __init__(self, shape: Shape, class_names: list[str], source: dict[str, Any]) -> None:
        self._shape = shape
        self._class_names = class_names
        self._source = source
        self._features = check_shape(shape)
        if not 1 <= len(class_names) <= MOST_CLASSES:
            raise DataError(
                f"there are {len(class_names):,} classes; there must be 1 to {MOST_CLASSES:,}", "merge some classes"
            )

    def take(self, split: Split, rows: Images) -> Iterator[tuple[Split, Images]]:
        """The same images; raises if their size or a label is wrong."""
        if rows.pixels.shape != (rows.num_rows, self._features):
            raise DataError(
                f"images of {rows.pixels.shape} bytes for {rows.num_rows} labels; "
                f"expected {rows.num_rows} × {self._features}",
                "pixels are [rows, height · width · channels]",
            )
        largest = int(rows.labels.max())
        if largest >= len(self._class_names):
            raise DataError(
                f"label {largest} is not one of the {len(self._class_names)} classes", "labels count the classes from 0"
            )
        yield split, rows

    def rest(self) -> Iterator[tuple[Split, Images]]:
        return iter(())

    def complete(self, split: Split, index: int, block: list[Images]) -> list[Images]:
        return list(block)

    def write_beside(self, folder: Path) -> None:
        pass

    def manifest(self, splits: dict[Split, SplitInfo]) -> ImageManifest:
        return ImageManifest(
            kind="images",
            shape=self._shape,
            classes=len(self._class_names),
            class_names=self._class_names,
            source=self._source,
            train=splits["train"],
            validation=splits["validation"],
            test=splits["test"],
        )


def check_shape(shape: Shape) -> int:
    """The bytes of an image; raises if it is empty or too large."""
    num_bytes = math.prod(shape)
    if min(shape) < 1 or num_bytes > MOST_FEATURES:
        raise DataError(
            f"images of {' × '.join(map(str, shape))} bytes; they must have 1 byte to {MOST_FEATURES >> 20} MiB",
            "scale them down; for folders of images, --size 256 does it",
        )
    return num_bytes
