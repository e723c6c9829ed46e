"""How are images generated that cost as much to train on as real ones, and have something to learn?

An image is noise over half of a byte's range, plus the pattern of its class: 8 × 8 seeded values per channel, spread
over the image by linear interpolation, an eighth as strong as the noise. No single pixel tells much; all of them do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.data.blocks.dataset import Split
from paceline.data.images.blocks import Images
from paceline.data.images.dataset import ImageDataset, image_writer
from paceline.data.labels import MOST_CLASSES
from paceline.data.limits import NO_LIMIT, check_limits
from paceline.data.pipeline import parse_in_order
from paceline.data.prepare_settings import LARGEST_SIZE
from paceline.data.synthetic import parts, write_all
from paceline.errors import ConfigError
from paceline.kernels.synthetic import add_patterns

PATTERN_SIDE = 8
PATTERN_HEIGHT = 8  # the largest difference from the mean, of noise that has 128 steps
MEAN = 64
PART_BYTES = 2 << 20


def generate_images(out: Path | str, *, rows: int, size: int, classes: int, channels: int, test_rows: int, seed: int,
                    progress: Callable[[int], None]) -> ImageDataset:  # fmt: skip
    """Write a dataset of generated images, `size` pixels high and wide; `progress` is called with the number so far."""
    check_limits(
        ("rows", rows, 1, NO_LIMIT, "--rows 10000"),
        ("test-rows", test_rows, 0, NO_LIMIT, "--test-rows 1000"),
        ("size", size, 1, LARGEST_SIZE, "--size 256"),
        ("classes", classes, 1, MOST_CLASSES, "--classes 1000"),
        ("seed", seed, 0, NO_LIMIT, "--seed 0"),
    )
    if channels not in (1, 3):
        raise ConfigError(f"`channels` is {channels}; it must be 3 (RGB) or 1 (grey)", "--channels 3")
    patterns = make_patterns(classes, channels, seed)
    settings = {"size": size, "classes": classes, "channels": channels, "seed": seed}
    source = {"format": "made-up images", "rows": rows, "test_rows": test_rows, **settings}
    names = [str(number) for number in range(classes)]

    def make(part: tuple[Split, int, int]) -> tuple[Split, Images]:
        split, first, num_rows = part
        return split, make_images(patterns, size, num_rows, np.random.Philox([seed, 1, first]))

    shape = (size, size, channels)
    made = parse_in_order(parts(rows, test_rows, max(1, PART_BYTES // math.prod(shape))), make)
    return write_all(image_writer(out, shape=shape, class_names=names, source=source), made, progress)


def make_patterns(classes: int, channels: int, seed: int) -> NDArray[np.float32]:
    """The classes' patterns around the mean, whole numbers: float32 [classes, side, side · channels]."""
    random = np.random.Generator(np.random.Philox([seed, 0]))
    shape = (classes, PATTERN_SIDE, PATTERN_SIDE * channels)
    return (MEAN + random.integers(-PATTERN_HEIGHT, PATTERN_HEIGHT, shape, endpoint=True)).astype(np.float32)


def places_of(size: int) -> NDArray[np.float32]:
    """Where each of an image's pixels lies along a pattern's side, to 1/64: float32 [size].

    >>> places_of(4).tolist()
    [0.5, 2.5, 4.5, 6.5]
    """
    places = ((np.arange(size) + 0.5) * PATTERN_SIDE / size - 0.5).clip(0, PATTERN_SIDE - 1)
    rounded: NDArray[np.float32] = (np.rint(places * 64) / 64).astype(np.float32)
    return rounded


def make_images(patterns: NDArray[np.float32], size: int, num_rows: int, bits: np.random.Philox) -> Images:
    """Images of uniformly drawn classes."""
    random = np.random.Generator(bits)
    labels = random.integers(0, len(patterns), num_rows, dtype=np.uint16)
    width = size * patterns.shape[2] // PATTERN_SIDE
    num_bytes = num_rows * size * width
    words = random.integers(0, (1 << 64) - 1, -(-num_bytes // 8), dtype=np.uint64, endpoint=True)
    pixels = words.view(np.uint8)[:num_bytes].reshape(num_rows, size, width)
    add_patterns(pixels, labels, patterns, places_of(size), np.empty((PATTERN_SIDE, width), np.float32))
    return Images(pixels.reshape(num_rows, -1), labels)
