"""Matrices in blocks, for Python: lazy expressions, computed when a number or a file is asked for.

>>> A = BlockMatrix.random(1_000, blocks=4, seed=1)
>>> (A @ A).trace() == (A.T @ A.T).trace()
True
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import ConfigError
from paceline.matrices.nodes import Added, Matrix, Node, Product, Scaled, Transposed
from paceline.matrices.sources import FLOATS, RandomSource, array_source, in_words, open_matrix, write_blocks
from paceline.matrices.trace import Progress, sum_of_all, trace_of

BLOCK_BYTES = 64 << 20
MOST_BLOCKS = 100_000
LARGEST_SIZE = 1 << 40
MOST_SEED = 2**64


class BlockMatrix:
    """A matrix of float32 or float64, cut into `blocks` (rows of blocks, columns of blocks).

    `@`, `+`, `.T` and `*` with a number only describe what to compute. `trace`, `sum`, `to_numpy`, `to_npy` and
    `to_blocks` compute it, a few blocks at a time.
    """

    # NumPy's arrays and numbers leave operators to this class.
    __array_ufunc__ = None

    def __init__(self, node: Node, blocks: tuple[int, int]) -> None:
        self.node, self.blocks = node, blocks
        self.shape, self.dtype = node.shape, node.dtype

    @staticmethod
    def random(
        size: int | tuple[int, int], *, blocks: int | tuple[int, int] | None = None, seed: int = 0,
        dtype: Any = np.float32,
    ) -> BlockMatrix:  # fmt: skip
        """Elements uniform in [0, 1). Each depends only on the seed, its row and its column, not on `blocks`.

        They are multiples of 2^-24, which both dtypes hold exactly: a seed is the same matrix in float32 and float64.
        """
        rows, columns = (size, size) if isinstance(size, int) else size
        for count in (rows, columns):
            if not 1 <= count <= LARGEST_SIZE:
                hint = "give a size such as 100000, or (rows, columns)"
                raise ConfigError(f"`size` is {count:,}; it must be 1 to {LARGEST_SIZE:,}", hint)
        if not 0 <= seed < MOST_SEED:
            raise ConfigError(f"`seed` is {seed}; it must be 0 to 2^64 - 1", "for instance 1024")
        if np.dtype(dtype) not in FLOATS:
            hint = "leave it out for float32"
            raise ConfigError(f"`dtype` is {np.dtype(dtype)}; it must be float32 or float64", hint)
        return _in_blocks(RandomSource((rows, columns), seed, np.dtype(dtype)), blocks)

    @staticmethod
    def from_npy(path: str | os.PathLike[str], *, blocks: int | tuple[int, int] | None = None) -> BlockMatrix:
        """The matrix in a .npy file, or in a folder that `to_blocks` made. It is read when needed, never whole."""
        return _in_blocks(open_matrix(Path(path)), blocks)

    @staticmethod
    def from_numpy(array: Any, *, blocks: int | tuple[int, int] | None = None) -> BlockMatrix:
        """An array in memory, which is not copied unless it holds integers."""
        return _in_blocks(array_source(array), blocks)

    @property
    def T(self) -> BlockMatrix:  # noqa: N802 (as NumPy calls it)
        """Rows as columns."""
        node = self.node.of if isinstance(self.node, Transposed) else Transposed(self.node)
        return BlockMatrix(node, (self.blocks[1], self.blocks[0]))

    def __matmul__(self, other: Any) -> BlockMatrix:
        if not isinstance(other, BlockMatrix):
            return NotImplemented
        check_product(self.node, other.node)
        return BlockMatrix(Product(self.node, other.node), (self.blocks[0], other.blocks[1]))

    def __add__(self, other: Any) -> BlockMatrix:
        if not isinstance(other, BlockMatrix):
            return NotImplemented
        if self.shape != other.shape:
            raise ConfigError(
                f"cannot add {in_words(self.shape)} and {in_words(other.shape)}", "both must have the same shape"
            )
        return BlockMatrix(Added(self.node, other.node), self.blocks)

    def __mul__(self, factor: Any) -> BlockMatrix:
        if not isinstance(factor, int | float | np.integer | np.floating):
            return NotImplemented
        return BlockMatrix(Scaled(self.node, float(factor)), self.blocks)

    __rmul__ = __mul__

    def trace(self, *, threads: int | None = None, progress: Progress | None = None) -> float:
        """The sum of the diagonal, in float64. Of a product A·B it is the sum of A∘Bᵀ, and A·B is not formed.

        The bits are the same for one number of blocks, whatever the number of threads; all cores are used by default.
        """
        return trace_of(self.node, self.blocks, threads, progress)

    def sum(self) -> float:
        """The sum of all elements, in float64. Products are not formed for it."""
        return sum_of_all(self.node, self.blocks)

    def to_numpy(self) -> Matrix:
        """The whole matrix as an array."""
        out = np.empty(self.shape, self.dtype)
        self.node.fill(0, 0, out)
        return out

    def to_npy(self, path: str | os.PathLike[str], *, memory: int | str = "1GB") -> None:
        """Write a .npy file on all cores, with at most `memory`. It appears when it is complete."""
        from paceline.matrices.product import write_npy

        write_npy(self.node, Path(path), memory)

    def to_blocks(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder of blocks, one .npy file each, as `from_npy` and `paceline matmul` read it."""
        write_blocks(self.node, Path(folder), self.blocks)

    def __repr__(self) -> str:
        rows, columns = self.blocks
        return f"BlockMatrix({in_words(self.shape)} {self.dtype}, {rows:,} × {columns:,} blocks)"


def check_product(left: Node, right: Node) -> None:
    """Raise unless the shapes fit, showing both."""
    if left.shape[1] != right.shape[0]:
        hint = "the first must have as many columns as the second has rows"
        raise ConfigError(f"cannot multiply {in_words(left.shape)} by {in_words(right.shape)}", hint)


def _in_blocks(node: Node, blocks: int | tuple[int, int] | None) -> BlockMatrix:
    """A matrix cut into this many blocks, or into blocks of a good size; raises if that is impossible."""
    shape = node.shape
    if blocks is None:
        side = int((BLOCK_BYTES / node.dtype.itemsize) ** 0.5)
        blocks = (min(-(-shape[0] // side), MOST_BLOCKS), min(-(-shape[1] // side), MOST_BLOCKS))
    elif isinstance(blocks, int):
        blocks = (blocks, blocks) if 1 not in shape else (min(blocks, shape[0]), min(blocks, shape[1]))
    for size, count in zip(shape, blocks, strict=True):
        most = min(size, MOST_BLOCKS)
        if not 1 <= count <= most:
            message = f"`blocks` is {count:,}; {in_words(shape)} can be cut into 1 to {most:,}"
            raise ConfigError(message, f"for example {min(most, 40)}")
    return BlockMatrix(node, blocks)
