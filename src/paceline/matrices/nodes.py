"""What is a matrix that has not been computed yet? A tree: sources at its leaves, operations above them.

A node can only copy a rectangle of itself into an array. Nothing is cached, so a rectangle costs the same each time. It
takes no more memory than the rectangle itself and a strip of `STRIP` rows per operation below it. A product is the
exception: it needs panels of both factors, `INNER` deep.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[Any]  # float32 or float64, two axes

STRIP = 256
INNER = 2048


class Node(Protocol):
    """A matrix of float32 or float64."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32 or float64."""

    def fill(self, row: int, column: int, out: Matrix) -> None:
        """Fill `out`, which is C-contiguous, with the elements from that row and column on, in its own dtype."""


class Transposed(NamedTuple):
    """Rows as columns."""

    of: Node

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.of.shape
        return columns, rows

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.of.dtype

    def fill(self, row: int, column: int, out: Matrix) -> None:
        rows, columns = out.shape
        for start in range(0, columns, STRIP):
            strip = np.empty((min(STRIP, columns - start), rows), out.dtype)
            self.of.fill(column + start, row, strip)
            out[:, start : start + len(strip)] = strip.T


class Scaled(NamedTuple):
    """Every element times a number."""

    of: Node
    factor: float

    @property
    def shape(self) -> tuple[int, int]:
        return self.of.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.of.dtype

    def fill(self, row: int, column: int, out: Matrix) -> None:
        self.of.fill(row, column, out)
        out *= self.factor


class Added(NamedTuple):
    """Two matrices of one shape, element by element."""

    left: Node
    right: Node

    @property
    def shape(self) -> tuple[int, int]:
        return self.left.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.result_type(self.left.dtype, self.right.dtype)

    def fill(self, row: int, column: int, out: Matrix) -> None:
        self.left.fill(row, column, out)
        for start in range(0, len(out), STRIP):
            part = out[start : start + STRIP]
            strip = np.empty(part.shape, out.dtype)
            self.right.fill(row + start, column, strip)
            part += strip


class Product(NamedTuple):
    """The product of two matrices."""

    left: Node
    right: Node

    @property
    def shape(self) -> tuple[int, int]:
        return self.left.shape[0], self.right.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.result_type(self.left.dtype, self.right.dtype)

    def fill(self, row: int, column: int, out: Matrix) -> None:
        rows, columns = out.shape
        inner = self.left.shape[1]
        out[...] = 0
        for start in range(0, inner, INNER):
            depth = min(INNER, inner - start)
            left, right = np.empty((rows, depth), out.dtype), np.empty((depth, columns), out.dtype)
            self.left.fill(row, start, left)
            self.right.fill(start, column, right)
            out += left @ right


def filling_elements(node: Node, rows: int, columns: int) -> int:
    """How many elements `node.fill` holds at most for a rectangle of this size, besides the rectangle itself.

    >>> from paceline.matrices.sources import RandomSource
    >>> a = RandomSource((5000, 5000), 0, np.dtype(np.float32))
    >>> filling_elements(a, 1000, 1000), filling_elements(Added(a, a), 1000, 1000) // STRIP
    (0, 1000)
    """
    match node:
        case Transposed(of=of):
            height = min(STRIP, columns)
            return height * rows + filling_elements(of, height, rows)
        case Scaled(of=of):
            return filling_elements(of, rows, columns)
        case Added(left=left, right=right):
            height = min(STRIP, rows)
            beside = height * columns + filling_elements(right, height, columns)
            return max(filling_elements(left, rows, columns), beside)
        case Product(left=left, right=right):
            depth = min(INNER, left.shape[1])
            inside = max(filling_elements(left, rows, depth), filling_elements(right, depth, columns))
            return rows * depth + depth * columns + max(inside, rows * columns)
    return 0


def cuts(size: int, blocks: int) -> list[int]:
    """Where `size` rows or columns are cut into blocks that differ by one at most, none of them empty; with both ends.

    >>> cuts(10, 4)
    [0, 2, 5, 7, 10]
    """
    blocks = min(blocks, size)
    return [cut(size, blocks, i) for i in range(blocks + 1)]


def cut(size: int, blocks: int, i: int) -> int:
    """Where block `i` of `blocks` begins."""
    return i * size // blocks
