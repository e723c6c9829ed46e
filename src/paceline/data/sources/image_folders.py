"""How are folders of images read, one folder per class?

First the headers of all files are read: are all images grey, and do all have the same size? Then the files are decoded,
on all cores. Training files are read in a shuffled order. Otherwise neighbours in a block would have the same class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from paceline.data.blocks.dataset import Split
from paceline.data.images.blocks import Images, Shape
from paceline.data.images.dataset import check_shape
from paceline.data.pipeline import parse_in_order
from paceline.data.sources import files as sources
from paceline.data.sources.files import Source
from paceline.data.sources.image_decoding import ImageHead, decode, load_pillow, read_head
from paceline.errors import DataError

HEADS_PER_CHUNK = 64

T = TypeVar("T")


class ImageFile(NamedTuple):
    """A file and the number of its class."""

    source: Source
    label: int


class ImageFolders:
    """Image files by class: classes are the training folders, sorted by name."""

    def __init__(
        self, train: list[Source], validation: list[Source], test: list[Source], size: int | None, seed: int
    ) -> None:
        load_pillow()  # before any file is read
        self._size = size
        self.class_names = sorted({class_of(source) for source in train})
        numbers = {name: number for number, name in enumerate(self.class_names)}
        self._files: dict[Split, list[ImageFile]] = {
            "train": [ImageFile(train[i], numbers[class_of(train[i])])
                      for i in np.random.default_rng(seed).permutation(len(train)).tolist()],
            "validation": [ImageFile(source, _known_class(source, numbers)) for source in validation],
            "test": [ImageFile(source, _known_class(source, numbers)) for source in test],
        }  # fmt: skip
        self.shape = find_shape([*train, *validation, *test], size)
        check_shape(self.shape)
        self.settings: dict[str, Any] = {"seed": seed} | ({} if size is None else {"size": size})
        self.notes: tuple[str, ...] = ()

    def read(self, split: Split) -> Iterator[tuple[Images, int]]:
        features = self.shape[0] * self.shape[1] * self.shape[2]
        files_per_chunk = max(1, min(HEADS_PER_CHUNK, sources.CHUNK_BYTES // features))
        return _in_chunks(self._files[split], files_per_chunk, self._decode)

    def _decode(self, files: list[ImageFile]) -> tuple[Images, int]:
        height, width, channels = self.shape
        images = Images(np.empty((len(files), height * width * channels), np.uint8), np.empty(len(files), np.uint16))
        for row, (source, label) in enumerate(files):
            pixels = decode(source, channels, self._size)
            if len(pixels) != images.pixels.shape[1]:
                raise DataError(f"`{source.name}` changed while it was read", "prepare it again")
            images.pixels[row], images.labels[row] = pixels, label
        return images, sum(source.num_bytes or 0 for source, _ in files)


def class_of(source: Source) -> str:
    """The class of a file: the first folder below the one that was named, or else the folder it is in."""
    folder, _, inside = source.below.partition("/")
    name = folder if inside else "" if source.below else Path(source.path).parent.name
    if not name:
        raise DataError(
            f"`{source.name}` is not in a folder that names its class",
            "put images into one folder per class, as in FOLDER/cat/1.jpg, and name FOLDER",
        )
    return name


def _known_class(source: Source, numbers: dict[str, int]) -> int:
    name = class_of(source)
    if name not in numbers:
        raise DataError(
            f"`{source.name}` has the class `{name}`, which is not one of the {len(numbers)} training classes",
            "training and test images have the same folders",
        )
    return numbers[name]


def find_shape(files: list[Source], size: int | None) -> Shape:
    """The shape that all images will have; raises for the first file with another size."""
    first: ImageHead | None = None
    all_grey, done = True, 0
    for heads in _in_chunks(files, HEADS_PER_CHUNK, lambda chunk: [read_head(source) for source in chunk]):
        for head in heads:
            first = first or head
            all_grey = all_grey and head.grey
            if size is None and head[:2] != first[:2]:
                raise DataError(
                    f"`{files[done].name}` is {head.height} × {head.width} (height × width), "
                    f"but `{files[0].name}` is {first.height} × {first.width}",
                    "--size 256 scales the shorter side to 256 and crops the centre",
                )
            done += 1
    assert first is not None
    height, width = (first.height, first.width) if size is None else (size, size)
    return height, width, 1 if all_grey else 3


def _in_chunks(files: list[Any], count: int, work: Callable[[list[Any]], T]) -> Iterator[T]:
    """The results of `work` for groups of files, on all cores, in order."""
    return parse_in_order((files[at : at + count] for at in range(0, len(files), count)), work)
