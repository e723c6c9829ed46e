"""Which format are images in, and which of their files are test files? Names and folders decide.

| format | files | test files |
|---|---|---|
| `idx` | `NAME-images-idx3-ubyte` and `NAME-labels-idx1-ubyte` | where NAME begins with `t10k` |
| `cifar` | `data_batch_N.bin` | `test_batch.bin` |
| `images` | `CLASS/FILE` or `train/CLASS/FILE` | `test/CLASS/FILE` or `val/CLASS/FILE` |

Where there are both, the files of `val/` are validation files.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from paceline.data.blocks.dataset import Split
from paceline.data.images.blocks import Images, Shape
from paceline.data.prepare_settings import PrepareConfig
from paceline.data.sources.cifar import Cifar
from paceline.data.sources.files import Source
from paceline.data.sources.idx import IDX_NAME, Idx
from paceline.data.sources.image_folders import ImageFolders
from paceline.errors import DataError

CIFAR_NAME = re.compile(r"(data_batch_\d+|test_batch)\.bin", re.IGNORECASE)
PICKLED_NAME = re.compile(r"data_batch_\d+")
IMAGE_SUFFIXES = (
    ".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp",
)  # fmt: skip
HELD_OUT_FOLDERS = ("test", "val")


class ImageReader(Protocol):
    """Images to read: their shape and classes are known before the first one is read.

    `settings` are the choices needed to prepare the same data again; `notes` tell the user what was found.
    """

    shape: Shape
    class_names: list[str]
    settings: dict[str, Any]
    notes: tuple[str, ...]

    def read(self, split: Split) -> Iterator[tuple[Images, int]]:
        """The images of a split in order, some at a time, each time with the bytes of files read for them."""


class ImageFiles(NamedTuple):
    """The files of an input by split; `notes` say which were left out."""

    train: list[Source]
    validation: list[Source]
    test: list[Source]
    notes: tuple[str, ...] = ()


def recognise_images(sources: list[Source]) -> str | None:
    """The format of an input of images, or None if it is something else."""
    names = [source.plain_name for source in sources]
    if any(IDX_NAME.fullmatch(name) for name in names):
        return "idx"
    if any(CIFAR_NAME.fullmatch(name) for name in names):
        return "cifar"
    if pickled := next((source for source in sources if PICKLED_NAME.fullmatch(source.plain_name)), None):
        raise DataError(
            f"`{pickled.name}` belongs to CIFAR-10's Python version, which only Python's pickle can read",
            "fetch the binary version: its files have names like data_batch_1.bin",
        )
    num_images = sum(_looks_like_image(source) for source in sources)
    return "images" if 2 * num_images > len(sources) else None


def choose_files(name: str, sources: list[Source]) -> ImageFiles:
    """The files of an input that hold images, by split; other files in its folders are left out."""
    images = IMAGE_FORMATS[name]
    chosen: list[Source] = []
    others: list[Source] = []
    for source in sources:
        # What was named file by file is meant, whatever it is called, unless names tell images from labels.
        belongs = images.has(source) or (not source.below and not images.pairs)
        (chosen if belongs else others).append(source)
    for source in others:
        if not source.below:
            raise DataError(
                f"`{source.name}` is named neither …-images-idx3-ubyte nor …-labels-idx1-ubyte",
                "images and labels are told apart, and paired, by these names",
            )
    if not chosen:
        raise DataError(
            f"neither `{sources[0].name}` nor any other file has the format {name}", "check the folder, and --format"
        )
    notes = _left_out(others, f"not in the format {name}") if others else ()
    files = images.split(chosen)
    return files._replace(notes=notes + files.notes)


def _looks_like_image(source: Source) -> bool:
    return Path(source.path).suffix.lower() in IMAGE_SUFFIXES


def _left_out(sources: list[Source], why: str) -> tuple[str, ...]:
    others = f" and {len(sources) - 1:,} more" if len(sources) > 1 else ""
    return (f"left out: `{sources[0].name}`{others}, {why}",)


def _split_by_name(test_prefix: str, sources: list[Source]) -> ImageFiles:
    """Files whose name begins with the prefix are test files, unless there are no others."""
    files = ImageFiles([], [], [])
    for source in sources:
        (files.test if source.plain_name.lower().startswith(test_prefix) else files.train).append(source)
    return files if files.train else ImageFiles(files.test, [], [])


def _split_by_folder(sources: list[Source]) -> ImageFiles:
    """Split by the folders `train/`, `test/` and `val/`, if there are any; `below` then begins with the class."""
    tops: dict[str, set[str]] = defaultdict(set)
    for source in sources:
        if "/" in source.below:
            tops[_root(source)].add(source.below.partition("/")[0])
    files = ImageFiles([], [], [])
    for source in sources:
        folders = tops.get(_root(source), set())
        held_out = next((name for name in HELD_OUT_FOLDERS if name in folders), None)
        if "train" not in folders or (held_out is None and folders != {"train"}):
            files.train.append(source)
            continue
        top, _, below = source.below.partition("/")
        if top == "train":
            files.train.append(source._replace(below=below))
        elif top == held_out:
            files.test.append(source._replace(below=below))
        elif top in HELD_OUT_FOLDERS:
            files.validation.append(source._replace(below=below))
        elif held_out is None:
            files.train.append(source)
        else:
            raise DataError(
                f"`{source.name}` is neither in train/ nor in {held_out}/",
                f"move it, or name the two folders: {_root(source)}train --test {_root(source)}{held_out}",
            )
    return files


def _root(source: Source) -> str:
    """The folder that was named: how the names of its files begin."""
    return source.name.removesuffix(source.below)


class ImageFormat(NamedTuple):
    """A format of images: which files have it by name, how these are split into training and test files, and how they
    are opened. Where `pairs` holds, names tell files of images from those of labels.
    """

    has: Callable[[Source], bool]
    split: Callable[[list[Source]], ImageFiles]
    open: Callable[[ImageFiles, PrepareConfig], ImageReader]
    pairs: bool = False


IMAGE_FORMATS = {
    "idx": ImageFormat(
        lambda source: IDX_NAME.fullmatch(source.plain_name) is not None,
        partial(_split_by_name, "t10k"),
        lambda files, config: Idx(files.train, files.test, config.classes, validation=files.validation),
        pairs=True,
    ),
    "cifar": ImageFormat(
        lambda source: source.suffix == ".bin",
        partial(_split_by_name, "test_batch"),
        lambda files, _: Cifar(files.train, files.test, files.validation),
    ),
    "images": ImageFormat(
        _looks_like_image,
        _split_by_folder,
        lambda files, config: ImageFolders(files.train, files.validation, files.test, config.size, config.seed),
    ),
}
