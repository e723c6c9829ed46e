"""How are IDX files, the format of MNIST, read?

A file of images begins with the bytes 00 00 08 03 (unsigned bytes, three axes) and three big-endian 32-bit numbers:
the number of images, their height and their width. A file of labels begins with 00 00 08 01 and the number of labels.
The bytes follow, and nothing else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.data.blocks.dataset import Split
from paceline.data.images.blocks import Images, Shape
from paceline.data.images.dataset import MOST_FEATURES
from paceline.data.sources import files as sources
from paceline.data.sources.files import FileStream, Source, open_stream
from paceline.errors import DataError

Rows = Iterator[tuple[NDArray[np.uint8], int]]

IDX_NAME = re.compile(r"(.*?)[-._]?(?:(images)[-.]idx3|(labels)[-.]idx1)-ubyte", re.IGNORECASE)
AXES = {"images": 3, "labels": 1}
CUT_SHORT = "it is cut short: fetch or write it again"


class IdxPair(NamedTuple):
    """A file of images and the file of their labels."""

    images: Source
    labels: Source
    rows: int
    height: int
    width: int


class Idx:
    """Pairs of IDX files. If `classes` is None, the classes are 0 to the largest training label."""

    def __init__(
        self, train: list[Source], test: list[Source], classes: int | None = None, *, validation: Sequence[Source] = ()
    ) -> None:
        files: dict[Split, Sequence[Source]] = {"train": train, "validation": validation, "test": test}
        self._pairs = {split: find_pairs(sources) for split, sources in files.items()}
        held_out = self._pairs["validation"] + self._pairs["test"]
        first, *others = self._pairs["train"] + held_out
        for pair in others:
            if (pair.height, pair.width) != (first.height, first.width):
                raise DataError(
                    f"`{pair.images.name}` has images of {pair.height} × {pair.width}, "
                    f"`{first.images.name}` of {first.height} × {first.width}",
                    "all images of a dataset have the same size",
                )
        self.shape: Shape = first.height, first.width, 1
        seen = np.zeros(256, np.bool_)
        for pair in self._pairs["train"]:
            seen |= first_rows(pair) > 0
        found = int(np.flatnonzero(seen).max(initial=0)) + 1
        said = "as --classes says" if classes else f"0 to {found - 1} in the training rows"
        for pair in held_out + (self._pairs["train"] if classes else []):
            _check_labels(pair, classes or found, said)
        self.class_names = [str(number) for number in range(classes or found)]
        self.settings: dict[str, Any] = {"classes": classes} if classes else {}
        self.notes = _missing(np.flatnonzero(~seen[: classes or found]))

    def read(self, split: Split) -> Iterator[tuple[Images, int]]:
        for pair in self._pairs[split]:
            yield from read_pair(pair)


def find_pairs(files: Sequence[Source]) -> list[IdxPair]:
    """The files of images, each with its labels: those of the same folder and name."""
    images: dict[tuple[str, str], Source] = {}
    labels: dict[tuple[str, str], Source] = {}
    for source in files:
        found = IDX_NAME.fullmatch(source.plain_name)
        assert found is not None
        kind = images if found[2] else labels
        key = str(Path(source.path).parent), found[1]
        if key in kind:
            raise DataError(f"`{kind[key].name}` and `{source.name}` are the same file", "name it once")
        kind[key] = source
    for some, others, what in ((images, labels, "labels-idx1"), (labels, images, "images-idx3")):
        for key, source in some.items():
            if key not in others:
                raise DataError(
                    f"`{source.name}` has no counterpart {key[1]}-{what}-ubyte",
                    "images and labels are two files with matching names",
                )
    return [_open_pair(source, labels[key]) for key, source in images.items()]


def _open_pair(images: Source, labels: Source) -> IdxPair:
    """The pair; the heads of both files must match."""
    with open_stream(images) as stream:
        rows, height, width = _read_head(images, stream, "images")
    if not 1 <= height * width <= MOST_FEATURES:
        raise DataError(f"`{images.name}` declares images of {height} × {width} pixels", "check how it was made")
    with open_stream(labels) as stream:
        (num_labels,) = _read_head(labels, stream, "labels")
    if rows != num_labels:
        raise DataError(
            f"`{images.name}` has {rows:,} images, but `{labels.name}` has {num_labels:,} labels",
            "check that the two files belong together",
        )
    return IdxPair(images, labels, rows, height, width)


def _read_head(source: Source, stream: FileStream, what: str) -> list[int]:
    """The sizes of the axes, with which a file of images or labels begins."""
    magic = bytes([0, 0, 8, AXES[what]])
    head = np.empty(4 + 4 * AXES[what], np.uint8)
    filled = stream.read_into(head)
    found = head[: min(filled, 4)].tobytes()
    if found != magic[:filled]:
        raise DataError(
            f"`{source.name}` begins with {found.hex(' ')}; {what} in IDX begin with {magic.hex(' ')}",
            f"check that it holds the {what}, as unsigned bytes",
        )
    if filled < len(head):
        raise DataError(f"`{source.name}` has {filled} bytes; its header has {len(head)}", CUT_SHORT)
    return [int(size) for size in head[4:].view(">u4")]


def first_rows(pair: IdxPair) -> NDArray[np.int64]:
    """For each label, the first row (from 1) that has it, or 0: int64 [256]."""
    found, done = np.zeros(256, np.int64), 0
    for labels, _ in _read_rows(pair.labels, "labels", sources.CHUNK_BYTES):
        values, places = np.unique(labels, return_index=True)
        fresh = found[values] == 0
        found[values[fresh]] = done + places[fresh] + 1
        done += len(labels)
    return found


def _missing(labels: NDArray[np.int64]) -> tuple[str, ...]:
    """What to say about labels that no row has; a single wrong label may be the reason.

    >>> _missing(np.array([3])), _missing(np.array([], np.int64))
    (('no training row has the label 3',), ())
    """
    if len(labels) < 2:
        return tuple(f"no training row has the label {label}" for label in labels)
    between = f"{labels[0]} to {labels[-1]} ({len(labels)} labels)"
    return (f"no training row has the labels {between}; --classes says how many there are",)


def _check_labels(pair: IdxPair, classes: int, said: str) -> None:
    """Raise for the first label that is not one of the classes."""
    beyond = first_rows(pair)[classes:]
    if beyond.any():
        row = int(beyond[beyond > 0].min())
        label = classes + int(np.flatnonzero(beyond == row)[0])
        raise DataError(
            f"`{pair.labels.name}`, row {row}: label {label} is not one of the {classes} classes, {said}",
            "check the files, and that training and test files belong together",
        )


def read_pair(pair: IdxPair) -> Iterator[tuple[Images, int]]:
    """The images of a pair of files in order, some megabytes at a time, and the bytes of both read for them."""
    chunk_rows = max(1, sources.CHUNK_BYTES // (pair.height * pair.width))
    both = zip(
        _read_rows(pair.images, "images", chunk_rows), _read_rows(pair.labels, "labels", chunk_rows), strict=True
    )
    before = 0
    for (pixels, bytes_of_images), (labels, bytes_of_labels) in both:
        bytes_read = bytes_of_images + bytes_of_labels
        yield Images(pixels, labels[:, 0].astype(np.uint16)), bytes_read - before
        before = bytes_read


def _read_rows(source: Source, what: str, chunk_rows: int) -> Rows:
    """The rows of a file, some at a time, uint8 [rows, bytes per row], and the bytes of the file read so far."""
    with open_stream(source) as stream:
        rows, *sizes = _read_head(source, stream, what)
        row_bytes = math.prod(sizes)
        for done in range(0, rows, chunk_rows):
            buffer = np.empty((min(chunk_rows, rows - done), row_bytes), np.uint8)
            filled = stream.read_into(buffer.reshape(-1))
            if filled < buffer.size:
                raise DataError(
                    f"`{source.name}` ends after {done + filled // row_bytes:,} of its {rows:,} {what}", CUT_SHORT
                )
            yield buffer, stream.bytes_read
        if stream.read_into(np.empty(1, np.uint8)):
            raise DataError(f"`{source.name}` has more than its {rows:,} {what}", "check how it was made")
