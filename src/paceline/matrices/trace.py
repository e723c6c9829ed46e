"""What is the trace, or the sum, of a matrix that was never computed?

The trace of a product is the sum of A∘Bᵀ: n² multiplications instead of n³, block pair by block pair. A pair's sum is
the same on every engine, and the exactly rounded sum of all (`math.fsum`) does not depend on which process made which.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.errors import ConfigError
from paceline.kernels.random_blocks import BITS, add_columns, add_products
from paceline.machine import num_cores
from paceline.matrices.nodes import Added, Node, Product, Scaled, Transposed, cut, cuts
from paceline.matrices.plan import MOST_BLOCKS_PER_SIDE
from paceline.matrices.sources import RandomSource, in_words

# Called with the number of pairs that are done, and of all pairs.
Progress = Callable[[int, int], None]
Vector = NDArray[np.float64]

UNIT = 2.0 ** (-2 * BITS)
# Pairs that wait for each thread.
AHEAD = 8
# Blocks that are read have at most this side squared elements, even if a matrix is cut into fewer blocks.
BLOCK_SIDE = 1 << 12
# Random elements are summed up in squares of this side: more products could overflow the sum's two 64-bit parts.
MOST_SIDE = 1 << 20


class Pair(NamedTuple):
    """Block (i, j) of the left factor and block (j, i) of the right one; `weight` is how often their sum counts."""

    i: int
    j: int
    weight: int


class RandomPairs(NamedTuple):
    """The trace of a product of two random matrices, cut into block pairs. Only numbers, so it can be sent anywhere.

    For the square of a matrix, pairs (i, j) and (j, i) have the same sum, which is computed once.
    """

    rows: int
    columns: int
    row_blocks: int
    column_blocks: int
    left_seed: int
    right_seed: int

    def pairs(self) -> Iterator[Pair]:
        """All pairs whose sums make the trace, in order."""
        for i in range(self.row_blocks):
            for j in range(i if self._is_square else 0, self.column_blocks):
                yield Pair(i, j, 2 if self._is_square and i != j else 1)

    @property
    def num_pairs(self) -> int:
        """How many pairs there are."""
        return self.row_blocks * (self.row_blocks + 1) // 2 if self._is_square else self.row_blocks * self.column_blocks

    @property
    def _is_square(self) -> bool:
        same_cuts = self.rows == self.columns and self.row_blocks == self.column_blocks
        return same_cuts and self.left_seed == self.right_seed

    def sum_of(self, pair: Pair) -> float:
        """Sum of a[r, c] · b[c, r] over a block pair, times its weight. Mostly runs without the GIL."""
        top, bottom = cut(self.rows, self.row_blocks, pair.i), cut(self.rows, self.row_blocks, pair.i + 1)
        left, right = cut(self.columns, self.column_blocks, pair.j), cut(self.columns, self.column_blocks, pair.j + 1)
        seeds = np.array([self.left_seed, self.right_seed], np.uint64)
        room = np.empty((2, min(MOST_SIDE, right - left) // 2 + 1), np.uint64)
        # Python's integers hold the sum exactly, however large.
        exact = 0
        for column, row in product(range(left, right, MOST_SIDE), range(top, bottom, MOST_SIDE)):
            sums, row_stop, stop = np.zeros(2, np.uint64), min(row + MOST_SIDE, bottom), min(column + MOST_SIDE, right)
            add_products(seeds, row, row_stop, column, stop, room[0], room[1], sums)
            exact += (int(sums[0]) << BITS) + int(sums[1])
        # The only rounding.
        return float(pair.weight * exact) * UNIT


def trace_of(
    node: Node, blocks: tuple[int, int], threads: int | None = None, progress: Progress | None = None
) -> float:
    """The trace of a square matrix; `blocks` is how its rows and inner rows are cut. No product is ever formed."""
    if node.shape[0] != node.shape[1]:
        raise ConfigError(f"a matrix of {in_words(node.shape)} has no trace: it is not square", "give a square matrix")
    match node:
        case Transposed(of=of):
            return trace_of(of, blocks, threads, progress)
        case Scaled(of=of, factor=factor):
            return factor * trace_of(of, blocks, threads, progress)
        case Added(left=left, right=right):
            return trace_of(left, blocks, threads, progress) + trace_of(right, blocks, threads, progress)
        case Product(left=left, right=right):
            return _trace_of_product(left, right, blocks, threads, progress)
    diagonal: list[float] = []
    for first, last in pairwise(_cuts_for_memory(node.shape, blocks)[0]):
        block = np.empty((last - first, last - first), node.dtype)
        node.fill(first, first, block)
        diagonal += np.diagonal(block).tolist()
    return math.fsum(diagonal)


def _trace_of_product(
    left: Node, right: Node, blocks: tuple[int, int], threads: int | None, progress: Progress | None
) -> float:
    (left, factor), (right, other) = _unscaled(left), _unscaled(right)
    factor *= other
    match left, right:
        case Transposed(of=first), Transposed(of=second):
            # trace(AᵀBᵀ) = trace(BA)
            left, right = second, first
    blocks = (min(blocks[0], left.shape[0]), min(blocks[1], left.shape[1]))
    check_num_blocks(blocks)
    if isinstance(left, RandomSource) and isinstance(right, RandomSource):
        random = RandomPairs(*left.shape, *blocks, left.seed, right.seed)
        return factor * sum_up(random.sum_of, random.pairs(), random.num_pairs, threads, progress)
    row_cuts, column_cuts = _cuts_for_memory(left.shape, blocks)

    def sum_of(pair: Pair) -> float:
        """Sum of left[r, c] · right[c, r] over a block pair, in float64, always in the same order."""
        top, start = row_cuts[pair.i], column_cuts[pair.j]
        shape = (row_cuts[pair.i + 1] - top, column_cuts[pair.j + 1] - start)
        x, y, sums = np.empty(shape, left.dtype), np.empty(shape, right.dtype), np.zeros(shape[1])
        left.fill(top, start, x)
        Transposed(right).fill(top, start, y)
        add_columns(x, y, sums)
        return math.fsum(sums.tolist())

    rows, columns = len(row_cuts) - 1, len(column_cuts) - 1
    pairs = (Pair(i, j, 1) for i, j in product(range(rows), range(columns)))
    return factor * sum_up(sum_of, pairs, rows * columns, threads, progress)


def check_num_blocks(blocks: tuple[int, int]) -> None:
    """Raise if the factors of a product are cut into too many block pairs."""
    if blocks[0] * blocks[1] > MOST_BLOCKS_PER_SIDE**2:
        raise ConfigError(
            f"`blocks` is {max(blocks):,}; a product has at most {MOST_BLOCKS_PER_SIDE:,} per side",
            f"whole blocks are never in memory: {MOST_BLOCKS_PER_SIDE:,} or fewer are enough for any size",
        )


def _cuts_for_memory(shape: tuple[int, int], blocks: tuple[int, int]) -> tuple[list[int], list[int]]:
    """Where to cut a matrix into this many blocks, or more if they would be too large to read.

    The blocks are of a result: the inner side of a product may be far longer than its rows and columns.
    """
    rows = max(blocks[0], -(-shape[0] // BLOCK_SIDE))
    widest = BLOCK_SIDE**2 // -(-shape[0] // rows)
    return cuts(shape[0], rows), cuts(shape[1], max(blocks[1], -(-shape[1] // widest)))


def _unscaled(node: Node) -> tuple[Node, float]:
    if not isinstance(node, Scaled):
        return node, 1.0
    inner, factor = _unscaled(node.of)
    return inner, node.factor * factor


def sum_up(
    sum_of: Callable[[Pair], float], pairs: Iterable[Pair], num_pairs: int, threads: int | None,
    progress: Progress | None,
) -> float:  # fmt: skip
    """The sum of all pairs' sums, computed on threads of this process."""

    def watched() -> Iterator[float]:
        with closing(sums_in_order(sum_of, pairs, threads or num_cores())) as sums:
            for done, value in enumerate(sums, 1):
                if progress is not None:
                    progress(done, num_pairs)
                yield value

    return math.fsum(watched())


def sums_in_order(sum_of: Callable[[Pair], float], pairs: Iterable[Pair], threads: int) -> Generator[float]:
    """The sum of each pair, computed on threads; only a few pairs per thread are taken ahead."""
    waiting: deque[Future[float]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="paceline-blocks") as pool:
        try:
            for pair in pairs:
                waiting.append(pool.submit(sum_of, pair))
                if len(waiting) >= AHEAD * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def sum_of_all(node: Node, blocks: tuple[int, int]) -> float:
    """The sum of all elements, in float64: 1ᵀ(X·1), so that no product of matrices is formed."""
    return math.fsum(times(node, np.ones(node.shape[1]), blocks).tolist())


def times(node: Node, vector: Vector, blocks: tuple[int, int], transposed: bool = False) -> Vector:
    """A matrix, or the transposed matrix, times a vector, in float64."""
    match node:
        case Transposed(of=of):
            return times(of, vector, blocks, not transposed)
        case Scaled(of=of, factor=factor):
            return factor * times(of, vector, blocks, transposed)
        case Added(left=left, right=right):
            return times(left, vector, blocks, transposed) + times(right, vector, blocks, transposed)
        case Product(left=left, right=right):
            first, last = (left, right) if transposed else (right, left)
            return times(last, times(first, vector, blocks, transposed), blocks, transposed)
    node = Transposed(node) if transposed else node
    rows, columns = _cuts_for_memory(node.shape, blocks)
    out = np.zeros(node.shape[0])
    for top, bottom in pairwise(rows):
        for start, stop in pairwise(columns):
            block = np.empty((bottom - top, stop - start))
            node.fill(top, start, block)
            out[top:bottom] += block @ vector[start:stop]
    return out
