"""Where do matrices come from? From a seed, an array, a .npy file, or a folder of blocks.

Files are read in place with plain reads into the caller's memory: what is read is counted once, and a file that changes
its length meanwhile is an error, not a crash. Nothing is ever unpickled.
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
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from paceline.errors import ConfigError, DataError
from paceline.files import refuse_existing, replace_file, translated_disk_errors
from paceline.kernels.random_blocks import fill_block
from paceline.matrices import nodes
from paceline.matrices.nodes import Added, Matrix, Node, Product, Scaled, Transposed, cuts

MANIFEST = "matrix.json"
FORMAT = "paceline blocks 1"
MOST_BYTES_A_READ = 1 << 30
# Files of one folder that are open at a time.
MOST_OPEN = 64
# What NumPy raises for headers that it cannot read.
UNREADABLE = (OSError, ValueError, EOFError, TypeError, SyntaxError, OverflowError, tokenize.TokenError)
FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


class RandomSource(NamedTuple):
    """Elements uniform in [0, 1), each from the seed, its row and its column alone; multiples of 2^-24."""

    rows: int
    columns: int
    seed: int
    dtype: np.dtype[Any]

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.columns

    def fill(self, row: int, column: int, out: Matrix) -> None:
        fill_block(np.uint64(self.seed), row, column, out)


class ArraySource:
    """An array in memory, which is not copied."""

    def __init__(self, array: Matrix) -> None:
        self.array = array
        self.shape: tuple[int, int] = array.shape
        self.dtype = array.dtype

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


def open_files(most: int) -> Callable[[Path], OpenFile]:
    """Opens files and keeps those open that were used last. From any thread."""
    return lru_cache(most)(OpenFile)


class NpySource:
    """A .npy file in C order. `opened` opens it again where too many others were in between."""

    def __init__(
        self, path: Path, shape: tuple[int, int], dtype: np.dtype[Any], offset: int,
        opened: Callable[[Path], OpenFile],
    ) -> None:  # fmt: skip
        self.path = path
        self.shape = shape
        # As it is in memory; the file's may have its bytes the other way round.
        self.dtype = dtype.newbyteorder("=")
        self._dtype = dtype
        self._offset = offset
        self._opened = opened
        with _translated_read_errors(path):
            self._seen = opened(path).seen

    def fill(self, row: int, column: int, out: Matrix) -> None:
        if out.dtype == self._dtype:
            self._fill(row, column, out)
            return
        for start in range(0, len(out), nodes.STRIP):
            part = out[start : start + nodes.STRIP]
            strip = np.empty(part.shape, self._dtype)
            self._fill(row + start, column, strip)
            part[...] = strip

    def _fill(self, row: int, column: int, out: Matrix) -> None:
        size, width = self._dtype.itemsize, self.shape[1]
        if out.shape[1] == width and out.flags.c_contiguous:
            self._read(out.reshape(-1), row * width * size)
            return
        for i, line in enumerate(out):
            self._read(line, ((row + i) * width + column) * size)

    def _read(self, line: Matrix, offset: int) -> None:
        room = line.data.cast("B")
        offset += self._offset
        with _translated_read_errors(self.path):
            file = self._opened(self.path)
            if file.seen != self._seen:
                raise DataError(f"`{self.path}` has changed while it was read", "begin again when it is finished")
            while len(room):
                count = os.preadv(file.descriptor, [room[:MOST_BYTES_A_READ]], offset)
                if not count:
                    raise DataError(f"`{self.path}` has become shorter while it was read", "write it again, whole")
                room, offset = room[count:], offset + count


@contextmanager
def _translated_read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"`{path}` cannot be read: {error.strerror or error}", "check the disk that it is on") from None


class _Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What lies in a folder of blocks."""

    format: str
    rows: int
    columns: int
    dtype: str
    row_cuts: list[int]
    column_cuts: list[int]


class FolderSource:
    """A folder of blocks: `matrix.json`, and one .npy file per block, `ROW-COLUMN.npy`, counted from 0."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        try:
            known = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=_Manifest)
        except (OSError, msgspec.DecodeError) as error:
            raise DataError(
                f"`{folder}` is not a folder of blocks: {error}", "give a folder that `to_blocks` made"
            ) from None
        self.shape = (known.rows, known.columns)
        self._row_cuts, self._column_cuts = known.row_cuts, known.column_cuts
        for size, edges in zip(self.shape, (self._row_cuts, self._column_cuts), strict=True):
            if known.format != FORMAT or edges[:1] != [0] or edges[-1:] != [size] or edges != sorted(set(edges)):
                raise DataError(
                    f"`{folder / MANIFEST}` is not a valid manifest", "write the folder again with `to_blocks`"
                )
        if known.dtype not in ("float32", "float64"):
            raise DataError(f"`{folder}` holds {known.dtype}; it is float32 or float64", "convert it first")
        self.dtype = np.dtype(known.dtype)
        self._opened = open_files(MOST_OPEN)
        self._blocks = [
            [self._open(i, j) for j in range(len(self._column_cuts) - 1)] for i in range(len(self._row_cuts) - 1)
        ]

    def _open(self, i: int, j: int) -> Node:
        block = open_npy(self.path / block_name(i, j), self._opened)
        expected = (self._row_cuts[i + 1] - self._row_cuts[i], self._column_cuts[j + 1] - self._column_cuts[j])
        if block.shape != expected or block.dtype != self.dtype:
            raise DataError(
                f"`{self.path / block_name(i, j)}` is {in_words(block.shape)} {block.dtype}; "
                f"{in_words(expected)} {self.dtype} was expected",
                "write the folder again with `to_blocks`",
            )
        return block

    def fill(self, row: int, column: int, out: Matrix) -> None:
        rows, columns = out.shape
        for i, top in enumerate(self._row_cuts[:-1]):
            first, last = max(row, top), min(row + rows, self._row_cuts[i + 1])
            if first >= last:
                continue
            for j, left in enumerate(self._column_cuts[:-1]):
                start, stop = max(column, left), min(column + columns, self._column_cuts[j + 1])
                if start < stop:
                    part = out[first - row : last - row, start - column : stop - column]
                    self._blocks[i][j].fill(first - top, start - left, part)


def block_name(i: int, j: int) -> str:
    """The file of a block."""
    return f"{i:05}-{j:05}.npy"


def open_matrix(path: Path | str) -> Node:
    """The matrix in a .npy file or a folder of blocks, or a `DataError` that says what is wrong."""
    path = Path(path)
    return FolderSource(path) if path.is_dir() else open_npy(path)


def open_npy(path: Path, opened: Callable[[Path], OpenFile] | None = None) -> Node:
    """The matrix in a .npy file of float32 or float64, in C or Fortran order, either byte order.

    With `opened`, which it shares with others, the file is not kept open for as long as the matrix is there.
    """
    opened = opened or open_files(1)
    hint = "give a .npy file as numpy.save writes it, of float32 or float64 with two axes"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Only the header is read: the mapping is looked at and dropped. It is never a pickle's.
            found = np.lib.format.open_memmap(path, mode="r")
    except FileNotFoundError:
        raise DataError(f"there is no file `{path}`", hint) from None
    except UNREADABLE as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"`{path}` is not a matrix: {reason}", hint) from None
    if found.ndim != 2 or 0 in found.shape:
        raise DataError(f"`{path}` is not a matrix: its shape is {found.shape}", hint)
    if found.dtype.newbyteorder("=") not in FLOATS:
        raise DataError(f"`{path}` holds {found.dtype}; it is float32 or float64", hint)
    rows, columns = found.shape
    if found.flags.c_contiguous:
        return NpySource(path, (rows, columns), found.dtype, found.offset, opened)
    return Transposed(NpySource(path, (columns, rows), found.dtype, found.offset, opened))


def write_blocks(node: Node, folder: Path, blocks: tuple[int, int]) -> None:
    """Write a matrix as a folder of blocks; the manifest comes last, so that an incomplete folder is not valid."""
    refuse_existing(folder)
    row_cuts, column_cuts = cuts(node.shape[0], blocks[0]), cuts(node.shape[1], blocks[1])
    with translated_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for i in range(blocks[0]):
            for j in range(blocks[1]):
                shape = (row_cuts[i + 1] - row_cuts[i], column_cuts[j + 1] - column_cuts[j])
                block = np.empty(shape, node.dtype)
                node.fill(row_cuts[i], column_cuts[j], block)
                np.save(folder / block_name(i, j), block, allow_pickle=False)
    manifest = _Manifest(FORMAT, *node.shape, str(node.dtype), row_cuts, column_cuts)
    replace_file(folder / MANIFEST, msgspec.json.encode(manifest))


def array_source(array: Any) -> ArraySource:
    """An array in memory; integers and truth values become float64."""
    found = np.asarray(array)
    if found.ndim != 2 or 0 in found.shape:
        raise ConfigError(f"an array of shape {found.shape} is not a matrix", "give one with two axes and an element")
    if found.dtype.kind in "iub":
        found = found.astype(np.float64)
    if found.dtype not in FLOATS:
        raise ConfigError(f"an array of {found.dtype} cannot be used; it is float32 or float64", "convert it first")
    return ArraySource(found)


def in_words(shape: tuple[int, int]) -> str:
    """A shape as people write it.

    >>> in_words((1000, 20))
    '1,000 × 20'
    """
    return f"{shape[0]:,} × {shape[1]:,}"


def fingerprint(node: Node) -> str:
    """What tells a matrix from another one, as far as it can be known without reading it: names, sizes and times."""
    match node:
        case RandomSource():
            return f"random {node.rows} {node.columns} {node.seed} {node.dtype}"
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
