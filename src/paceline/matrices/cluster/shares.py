"""How is a product divided among workers? One rectangle each, in tiles that fit into their memory."""

from __future__ import annotations

import hashlib
import math
from itertools import pairwise
from typing import NamedTuple

from paceline.errors import ConfigError
from paceline.matrices.cluster.placement import Grid, Rectangle, grid_of, place
from paceline.matrices.cluster.tiles import tile_bytes
from paceline.matrices.nodes import cuts
from paceline.matrices.plan import Shape, check_block, in_bytes, least_block, memory_for, room_in

# By default, a worker has this many blocks along each side, unless they would be smaller than `LEAST_BLOCK`.
BLOCKS_A_SIDE = 4
LEAST_BLOCK, MOST_BLOCK = 256, 2048


class Shares(NamedTuple):
    """Who computes what: one rectangle per worker, and its tiles. Tasks are tiles, counted over all workers."""

    block: int
    grid: Grid
    rectangles: list[Rectangle]
    tiles: list[list[Rectangle]]

    @property
    def homes(self) -> list[int]:
        """The worker of each task."""
        return [rank for rank, some in enumerate(self.tiles) for _ in some]

    @property
    def starts(self) -> list[tuple[int, int]]:
        """Row and column of the result at which each task's tile begins."""
        return [(self.grid.rows[tile.top], self.grid.columns[tile.left]) for some in self.tiles for tile in some]

    @property
    def digest(self) -> str:
        """Tells these shares from others of the same product."""
        return hashlib.sha256(repr((self.block, self.tiles)).encode()).hexdigest()[:16]


def share_out(shape: Shape, itemsize: int, workers: int, memory: int, block: int) -> Shares:
    """Divide a product among workers with this much memory each, in blocks with side `block`; 0 chooses a good one."""
    block = block or _good_block(shape, workers)
    check_share(shape, itemsize, memory, block)
    grid = grid_of(shape, block)
    rectangles = place(grid, workers)
    return Shares(block, grid, rectangles, [_tiles(one, grid, itemsize, memory) for one in rectangles])


def check_share(shape: Shape, itemsize: int, memory: int, block: int) -> None:
    """Raise unless a worker with this much memory can compute one block of the result; with 0, of the smallest side.

    This needs no cluster, so it can be checked before one is started.
    """
    block = block or max(least_block(shape), min(LEAST_BLOCK, max(shape)))
    check_block(shape, block)
    # The first block is the largest.
    needed = tile_bytes(grid_of(shape, block), Rectangle(0, 1, 0, 1), itemsize)
    if needed > room_in(memory):
        raise ConfigError(
            f"`memory` is {in_bytes(memory)}, too little for a block and its factors in blocks of {block:,}",
            f"--memory {in_bytes(memory_for(needed))} or more, or a smaller --block",
        )


def _good_block(shape: Shape, workers: int) -> int:
    """A side that gives each worker some blocks along each side of its rectangle."""
    wanted = min(shape.rows, shape.columns) / (BLOCKS_A_SIDE * math.sqrt(workers))
    return max(least_block(shape), min(MOST_BLOCK, max(LEAST_BLOCK, round(wanted)), max(shape)))


def _tiles(one: Rectangle, grid: Grid, itemsize: int, memory: int) -> list[Rectangle]:
    """A worker's rectangle in tiles that fit into its memory, so that little is fetched twice. One block fits."""
    height, width = one.bottom - one.top, one.right - one.left
    # Rows and columns of tiles: each further cut of the columns fetches the rows again, and vice versa.
    best = (height, width)
    tallest, widest = _largest(height, one.top, grid.rows), _largest(width, one.left, grid.columns)
    for rows, tall in enumerate(tallest, 1):
        for columns, wide in enumerate(widest, 1):
            if rows * width + columns * height >= best[0] * width + best[1] * height:
                break
            if tile_bytes(grid, Rectangle(*tall, *wide), itemsize) <= room_in(memory):
                best = (rows, columns)
                break
    return [
        Rectangle(one.top + top, one.top + bottom, one.left + left, one.left + right)
        for top, bottom in pairwise(cuts(height, best[0]))
        for left, right in pairwise(cuts(width, best[1]))
    ]


def _largest(length: int, start: int, edges: list[int]) -> list[tuple[int, int]]:
    """The part with the most elements, from block to block, when `length` blocks are cut into 1, 2, 3, … parts."""
    found = []
    for count in range(1, length + 1):
        parts = [(start + first, start + last) for first, last in pairwise(cuts(length, count))]
        found.append(max(parts, key=lambda part: edges[part[1]] - edges[part[0]]))
    return found
