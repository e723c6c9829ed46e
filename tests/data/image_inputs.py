"""Inputs for the tests of images, and a look at what was made of them."""

from __future__ import annotations

import struct
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from paceline.data.blocks.dataset import Split
from paceline.data.images.blocks import Images
from paceline.data.images.dataset import ImageDataset
from paceline.data.prepare_settings import Prepared
from tests.data.inputs import run_any, write

IMAGES_NAME, LABELS_NAME = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def random_images(rows: int, features: int, classes: int, seed: int = 0) -> Images:
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (rows, features), dtype=np.uint8)
    return Images(pixels, random.integers(0, classes, rows).astype(np.uint16))


def run_images(tmp_path: Path, *sources: Path | str, **settings: Any) -> Prepared[ImageDataset]:
    """Prepare images into a folder of `tmp_path`."""
    made = run_any(tmp_path, *sources, **settings)
    assert isinstance(made.dataset, ImageDataset)
    return made


def all_images(dataset: ImageDataset, split: Split = "train") -> Images:
    """Every image of a split, copied."""
    blocks = [dataset.block(split, index) for index in range(len(dataset.split(split).blocks))]
    return Images(
        np.concatenate([block.pixels for block in blocks] or [np.empty((0, dataset.features), np.uint8)]),
        np.concatenate([block.labels for block in blocks] or [np.empty(0, np.uint16)]),
    )


def same_images(a: Images, b: Images) -> bool:
    return np.array_equal(a.pixels, b.pixels) and np.array_equal(a.labels, b.labels)


def sorted_images(images: Images) -> list[tuple[int, bytes]]:
    """The rows whatever their order."""
    return sorted((int(label), row.tobytes()) for row, label in zip(images.pixels, images.labels, strict=True))


# IDX, written the plain way.


def idx_images(images: Images, height: int, width: int) -> bytes:
    return struct.pack(">4I", 0x803, images.num_rows, height, width) + images.pixels.tobytes()


def idx_labels(images: Images) -> bytes:
    return struct.pack(">2I", 0x801, images.num_rows) + images.labels.astype(np.uint8).tobytes()


def write_idx(folder: Path, name: str, images: Images, height: int, width: int) -> None:
    folder.mkdir(exist_ok=True)
    write(folder / f"{name}-images-idx3-ubyte", idx_images(images, height, width))
    write(folder / f"{name}-labels-idx1-ubyte", idx_labels(images))


# CIFAR-10.


def cifar_rows(images: Images) -> bytes:
    """Rows of 32 × 32 × 3 images: a label, and three planes."""
    planes = images.pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2).reshape(images.num_rows, -1)
    return np.concatenate([images.labels.astype(np.uint8)[:, None], planes], axis=1).tobytes()


# Image files.


def save_image(path: Path, pixels: NDArray[Any], **options: Any) -> Path:
    """Write pixels [height, width] or [height, width, 3] as an image of the kind that the suffix says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.fromarray(pixels).save(path, **options)
    return path


def image_bytes(kind: str, pixels: NDArray[np.uint8]) -> bytes:
    file = BytesIO()
    PIL.Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def random_pixels(*shape: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
