"""Where do matrices come from? From a seed, an array, a .npy file, or a folder of blocks.

Files are read in place with plain reads into the caller's memory: no byte is held twice, and a file whose length
changes meanwhile is an error, not a crash. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import tokenize
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from paceline.errors import BAD_TEXT, ConfigError, DataError
from paceline.files import read_file, refuse_existing, replace_file, translated_disk_errors
from paceline.kernels.random_blocks import fill_block
from paceline.matrices import nodes
from paceline.matrices.nodes import Added, Matrix, Node, Product, Scaled, Transposed, cuts

MANIFEST = "matrix.json"
MOST_BYTES_PER_READ = 1 << 30
# Files of one folder that are open at a time.
MOST_OPEN = 64
# What NumPy raises for headers that it cannot read.
UNREADABLE = (
    OSError, ValueError, EOFError, TypeError, SyntaxError, OverflowError, MemoryError, RecursionError,
    tokenize.TokenError,
)  # fmt: skip
FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


class RandomSource(NamedTuple):
    """Elements uniform in [0, 1), each from the seed, its row and its column alone; multiples of 2^-24."""

    shape: tuple[int, int]
    seed: int
    dtype: np.dtype[Any]

    def fill(self, row: int, column: int, out: Matrix) -> None:
        fill_block(np.uint64(self.seed), row, column, out)


class ArraySource(NamedTuple):
    """An array in memory, which is not copied."""

    array: Matrix
    shape: tuple[int, int]
    dtype: np.dtype[Any]

    def fill(self, row: int, column: int, out: Matrix) -> None:
        rows, columns = out.shape
        out[...] = self.array[row : row + rows, column : column + columns]


class OpenFile:
    """A file that is open for reading until its last user is gone."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        found = os.fstat(self.descriptor)
        self.seen = (found.st_ino, found.st_size, found.st_mtime_ns)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


class NpySource(NamedTuple):
    """A .npy file in C order. `opened` opens it, or finds it still open; `seen` is what it must be like then."""

    path: Path
    shape: tuple[int, int]
    stored: np.dtype[Any]
    offset: int
    opened: Callable[[Path], OpenFile]
    seen: tuple[int, int, int]

    @property
    def dtype(self) -> np.dtype[Any]:
        """As it is in memory; the file may have the other byte order."""
        return self.stored.newbyteorder("=")

    def fill(self, row: int, column: int, out: Matrix) -> None:
        if out.dtype == self.stored:
            self._fill(row, column, out)
            return
        for start in range(0, len(out), nodes.STRIP):
            part = out[start : start + nodes.STRIP]
            strip = np.empty(part.shape, self.stored)
            self._fill(row + start, column, strip)
            part[...] = strip

    def _fill(self, row: int, column: int, out: Matrix) -> None:
        size, width = self.stored.itemsize, self.shape[1]
        if out.shape[1] == width and out.flags.c_contiguous:
            self._read(out.reshape(-1), row * width * size)
            return
        for i, line in enumerate(out):
            self._read(line, ((row + i) * width + column) * size)

    def _read(self, line: Matrix, offset: int) -> None:
        room = line.data.cast("B")
        offset += self.offset
        with _translated_read_errors(self.path):
            file = self.opened(self.path)
            if file.seen != self.seen:
                raise DataError(f"`{self.path}` changed while it was read", "try again when the file is complete")
            while len(room):
                count = os.preadv(file.descriptor, [room[:MOST_BYTES_PER_READ]], offset)
                if not count:
                    raise DataError(f"`{self.path}` became shorter while it was read", "write the whole file again")
                room, offset = room[count:], offset + count


@contextmanager
def _translated_read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"`{path}` cannot be read: {error.strerror or error}", "check its disk") from None


class _Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is in a folder of blocks."""

    format: Literal["paceline blocks 1"]
    rows: int
    columns: int
    dtype: Literal["float32", "float64"]
    row_cuts: list[int]
    column_cuts: list[int]


class FolderSource(NamedTuple):
    """A folder of blocks: `matrix.json`, and one .npy file per block, `ROW-COLUMN.npy`, counted from 0."""

    path: Path
    dtype: np.dtype[Any]
    row_cuts: list[int]
    column_cuts: list[int]
    blocks: list[list[Node]]

    @property
    def shape(self) -> tuple[int, int]:
        return self.row_cuts[-1], self.column_cuts[-1]

    def fill(self, row: int, column: int, out: Matrix) -> None:
        rows, columns = out.shape
        for blocks, (top, bottom) in zip(self.blocks, pairwise(self.row_cuts), strict=True):
            first, last = max(row, top), min(row + rows, bottom)
            if first >= last:
                continue
            for block, (left, right) in zip(blocks, pairwise(self.column_cuts), strict=True):
                start, stop = max(column, left), min(column + columns, right)
                if start < stop:
                    block.fill(first - top, start - left, out[first - row : last - row, start - column : stop - column])


def open_blocks(folder: Path) -> FolderSource:
    """The matrix in a folder of blocks, all of which are there and have the right shape."""
    hint = "give a folder that `to_blocks` made"
    if not (folder / MANIFEST).is_file():
        raise DataError(f"`{folder}` is not a folder of blocks: it has no file {MANIFEST}", hint)
    try:
        known = msgspec.json.decode(read_file(folder / MANIFEST, hint), type=_Manifest)
    except (OSError, *BAD_TEXT) as error:
        raise DataError(f"`{folder}` is not a folder of blocks: {error}", hint) from None
    for size, edges in ((known.rows, known.row_cuts), (known.columns, known.column_cuts)):
        if edges[:1] != [0] or edges[-1:] != [size] or edges != sorted(set(edges)):
            raise DataError(f"`{folder / MANIFEST}` is not a valid manifest", hint)
    source = FolderSource(folder, np.dtype(known.dtype), known.row_cuts, known.column_cuts, [])
    opened = lru_cache(MOST_OPEN)(OpenFile)
    for i, (top, bottom) in enumerate(pairwise(known.row_cuts)):
        source.blocks.append([])
        for j, (left, right) in enumerate(pairwise(known.column_cuts)):
            path, expected = folder / block_name(i, j), (bottom - top, right - left)
            block = open_npy(path, opened)
            if block.shape != expected or block.dtype != source.dtype:
                message = f"`{path}` is {in_words(block.shape)} {block.dtype}, not {in_words(expected)} {source.dtype}"
                raise DataError(message, "write the folder again with `to_blocks`")
            source.blocks[i].append(block)
    return source


def block_name(i: int, j: int) -> str:
    """The file of a block."""
    return f"{i:05}-{j:05}.npy"


def open_matrix(path: Path | str) -> Node:
    """The matrix in a .npy file or a folder of blocks, or a `DataError` that says what is wrong."""
    path = Path(path)
    return open_blocks(path) if path.is_dir() else open_npy(path)


def open_npy(path: Path, opened: Callable[[Path], OpenFile] | None = None) -> Node:
    """The matrix in a .npy file of float32 or float64, in C or Fortran order, either byte order.

    The file stays open as long as the matrix exists, or as long as `opened`, which other files share, keeps it open.
    """
    opened = opened or lru_cache(1)(OpenFile)
    hint = "give a .npy file that numpy.save wrote, of float32 or float64 with two axes"
    if path.exists() and not path.is_file():
        raise DataError(f"`{path}` is not a regular file", hint)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Only the header is read; the mapping is dropped. Pickled objects are refused.
            found = np.lib.format.open_memmap(path, mode="r")
    except FileNotFoundError:
        raise DataError(f"no such file: `{path}`", hint) from None
    except UNREADABLE as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"`{path}` is not a matrix: {reason}", hint) from None
    if found.ndim != 2 or 0 in found.shape:
        raise DataError(f"`{path}` is not a matrix: its shape is {found.shape}", hint)
    if found.dtype.newbyteorder("=") not in FLOATS:
        raise DataError(f"`{path}` holds {found.dtype}; it must be float32 or float64", hint)
    rows, columns = found.shape
    is_c = found.flags.c_contiguous
    with _translated_read_errors(path):
        shape = (rows, columns) if is_c else (columns, rows)
        source = NpySource(path, shape, found.dtype, found.offset, opened, opened(path).seen)
    return source if is_c else Transposed(source)


def write_blocks(node: Node, folder: Path, blocks: tuple[int, int]) -> None:
    """Write a matrix as a folder of blocks; the manifest comes last, so that an incomplete folder is not valid."""
    refuse_existing(folder)
    row_cuts, column_cuts = cuts(node.shape[0], blocks[0]), cuts(node.shape[1], blocks[1])
    with translated_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for i, (top, bottom) in enumerate(pairwise(row_cuts)):
            for j, (left, right) in enumerate(pairwise(column_cuts)):
                block = np.empty((bottom - top, right - left), node.dtype)
                node.fill(top, left, block)
                np.save(folder / block_name(i, j), block, allow_pickle=False)
    dtype: Literal["float32", "float64"] = "float32" if node.dtype == np.float32 else "float64"
    manifest = _Manifest("paceline blocks 1", *node.shape, dtype, row_cuts, column_cuts)
    replace_file(folder / MANIFEST, msgspec.json.encode(manifest))


def array_source(array: Any) -> ArraySource:
    """An array in memory; integers and truth values become float64."""
    found = np.asarray(array)
    if found.ndim != 2 or 0 in found.shape:
        raise ConfigError(
            f"an array of shape {found.shape} is not a matrix", "give one with two axes and at least one element"
        )
    if found.dtype.kind in "iub":
        found = found.astype(np.float64)
    if found.dtype not in FLOATS:
        raise ConfigError(f"an array of {found.dtype} is not supported; use float32 or float64", "convert it first")
    return ArraySource(found, found.shape, found.dtype)


def in_words(shape: tuple[int, int]) -> str:
    """A shape as people write it.

    >>> in_words((1000, 20))
    '1,000 × 20'
    """
    return f"{shape[0]:,} × {shape[1]:,}"


def fingerprint(node: Node) -> str:
    """Identifies a matrix, as far as that is possible without reading it, by names, sizes and times."""
    match node:
        case RandomSource():
            return f"random {node.shape[0]} {node.shape[1]} {node.seed} {node.dtype}"
        case NpySource():
            return _seen(node.path)
        case FolderSource():
            seen = "\n".join(_seen(path) for path in sorted(node.path.iterdir()))
            return hashlib.sha256(seen.encode()).hexdigest()
        case Transposed() | Scaled() | Added() | Product():
            parts = [fingerprint(part) if not isinstance(part, float) else repr(part) for part in node]
            return f"{type(node).__name__}({', '.join(parts)})"
    # An array in memory is gone with its process.
    return secrets.token_hex(16)


def _seen(path: Path) -> str:
    seen = path.stat()
    return f"{path.resolve()} {seen.st_size} {seen.st_mtime_ns}"
