"""Which worker computes which part of a product, and where do the blocks of its factors live, so that few bytes move?

Each worker computes one rectangle of the result, all of about the same size. For that, it needs the rectangle's rows of
the left factor and its columns of the right one: half the perimeter of the rectangle, so nearly square ones are best.
The result is cut into strips, and strips into rectangles (the columns of Beaumont, Boudet, Rastello and Robert, "Matrix
multiplication on heterogeneous platforms", 2001). Every block of a factor lives on one of the workers that need it, in
turn, and goes to each of the others once. A worker computes its rectangle in tiles that fit into its memory.
"""

from __future__ import annotations

import hashlib
import math
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from paceline.errors import ConfigError
from paceline.matrices.nodes import cuts
from paceline.matrices.plan import STRIP_ROWS, Shape, check_block, in_bytes, least_block, memory_for, room_in

# By default, a worker has this many blocks along each side, unless they would be smaller than `LEAST_BLOCK`.
BLOCKS_PER_SIDE = 4
LEAST_BLOCK, MOST_BLOCK = 256, 2048
# A rectangle may be this many times larger than the mean if fewer bytes move then.
MOST_IMBALANCE = 1.25
LEFT, RIGHT = 0, 1


class Grid(NamedTuple):
    """Where a product's rows, inner side and columns are cut into blocks."""

    rows: list[int]
    inner: list[int]
    columns: list[int]

    @property
    def num_blocks(self) -> tuple[int, int, int]:
        return len(self.rows) - 1, len(self.inner) - 1, len(self.columns) - 1


def grid_of(shape: Shape, block: int) -> Grid:
    """Blocks of one side; those at the far ends are smaller."""
    return Grid(*([*range(0, side, block), side] for side in shape))


class Rectangle(NamedTuple):
    """Blocks of the result: rows from `top` to before `bottom`, columns from `left` to before `right`."""

    top: int
    bottom: int
    left: int
    right: int

    @property
    def area(self) -> int:
        return (self.bottom - self.top) * (self.right - self.left)


def place(grid: Grid, workers: int) -> list[Rectangle]:
    """One rectangle per worker; fewer if there are not enough blocks."""
    rows, _, columns = grid.num_blocks
    found = [_strips(rows, columns, count, workers) for count in range(1, min(workers, columns) + 1)]
    found += [
        [Rectangle(r.left, r.right, r.top, r.bottom) for r in _strips(columns, rows, count, workers)]
        for count in range(1, min(workers, rows) + 1)
    ]
    fair = rows * columns / min(workers, rows * columns)

    def cost(rectangles: list[Rectangle]) -> tuple[float, int]:
        largest = max(rectangle.area for rectangle in rectangles) / fair
        return max(largest, MOST_IMBALANCE), moved_elements(grid, rectangles)

    return min(found, key=cost)


def _strips(rows: int, columns: int, count: int, workers: int) -> list[Rectangle]:
    """`count` strips of columns, each as wide as its number of workers asks for and cut into rows for them."""
    sizes = [workers * (i + 1) // count - workers * i // count for i in range(count)]
    edges = [0, *(max(i + 1, round(columns * done / workers)) for i, done in enumerate(accumulate(sizes)))]
    edges = [min(edge, columns - count + i) for i, edge in enumerate(edges)]
    found = []
    for (left, right), size in zip(pairwise(edges), sizes, strict=True):
        found += [Rectangle(top, bottom, left, right) for top, bottom in pairwise(cuts(rows, size))]
    return found


class Owners:
    """Which worker each block of the factors lives on."""

    def __init__(self, grid: Grid, rectangles: list[Rectangle]) -> None:
        rows, _, columns = grid.num_blocks
        self._of_row = [[p for p, r in enumerate(rectangles) if r.top <= i < r.bottom] for i in range(rows)]
        self._of_column = [[p for p, r in enumerate(rectangles) if r.left <= j < r.right] for j in range(columns)]

    def of(self, side: int, outer: int, inner: int) -> int:
        """The worker of a block: `outer` counts rows of the left factor or columns of the right one."""
        needed_by = (self._of_row if side == LEFT else self._of_column)[outer]
        return needed_by[(outer + inner) % len(needed_by)]


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

    def movement(self, workers: int, itemsize: int) -> dict[str, Any]:
        """Bytes as planned, the least that is possible, and those of a placement that ignores neighbours."""
        owners = Owners(self.grid, self.rectangles)
        return {
            "algorithm": "each worker an equal rectangle of the result, each block on a worker that needs it",
            "block": self.block,
            "bytes_planned": itemsize * fetched_elements(self.grid, owners, self.tiles),
            "bytes_lower_bound": int(itemsize * least_elements(self.grid, workers)),
            "bytes_naive": itemsize * naive_elements(self.grid, workers),
        }


def tile_bytes(grid: Grid, tile: Rectangle, itemsize: int) -> int:
    """What a worker needs for a tile: the result, two panels of each factor, and a strip per thread."""
    rows = grid.rows[tile.bottom] - grid.rows[tile.top]
    columns = grid.columns[tile.right] - grid.columns[tile.left]
    depth = grid.inner[1]  # the first is the deepest
    return itemsize * (rows * columns + 2 * depth * (rows + columns) + 2 * STRIP_ROWS * columns)


def share_out(shape: Shape, itemsize: int, workers: int, memory: int, block: int) -> Shares:
    """Divide a product among workers with this much memory each, in blocks with side `block`; 0 chooses a good one."""
    if not block:
        # A side that gives each worker some blocks along each side of its rectangle.
        wanted = min(shape.rows, shape.columns) / (BLOCKS_PER_SIDE * math.sqrt(workers))
        block = max(least_block(shape), min(MOST_BLOCK, max(LEAST_BLOCK, round(wanted)), max(shape)))
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
    cut = ([start + edge for edge in cuts(length, count)] for count in range(1, length + 1))
    return [max(pairwise(places), key=lambda part: edges[part[1]] - edges[part[0]]) for places in cut]


def moved_elements(grid: Grid, rectangles: list[Rectangle]) -> int:
    """How many elements of the factors go from one worker to another."""
    rows, inner, columns = grid
    needed = sum(rows[r.bottom] - rows[r.top] + columns[r.right] - columns[r.left] for r in rectangles)
    return inner[-1] * (needed - rows[-1] - columns[-1])


def fetched_elements(grid: Grid, owners: Owners, tiles: list[list[Rectangle]]) -> int:
    """What workers fetch from each other when each computes its tiles one after the other."""
    count = 0
    for rank, some in enumerate(tiles):
        for tile in some:
            for inner, (start, stop) in enumerate(pairwise(grid.inner)):
                for side, outers, edges in (
                    (LEFT, range(tile.top, tile.bottom), grid.rows),
                    (RIGHT, range(tile.left, tile.right), grid.columns),
                ):
                    lengths = (edges[k + 1] - edges[k] for k in outers if owners.of(side, k, inner) != rank)
                    count += (stop - start) * sum(lengths)
    return count


def least_elements(grid: Grid, workers: int) -> float:
    """What must move when each worker computes an equal share and every element of a factor lives on one of them.

    A share with r rows and c columns of the result needs r + c, and r · c is given: squares are best.
    """
    rows, columns, inner = grid.rows[-1], grid.columns[-1], grid.inner[-1]
    share = rows * columns / workers
    height = min(math.sqrt(share), rows)
    width = min(share / height, columns)
    height = share / width
    return max(0.0, inner * (workers * (height + width) - rows - columns))


def naive_elements(grid: Grid, workers: int) -> int:
    """What would move if the blocks of all three matrices were simply dealt out in turn."""
    rows, inner, columns = grid.num_blocks
    depths = [stop - start for start, stop in pairwise(grid.inner)]
    # Block (i, k) of the left factor is number i · inner + k, and (k, j) of the right one k · columns + j: so
    # remainders tell what of a row or a column lives on a worker.
    by_left, by_right = [0] * workers, [0] * workers
    for k, depth in enumerate(depths):
        by_left[k % workers] += depth
        by_right[k * columns % workers] += depth
    row_remainders = {i * columns % workers for i in range(rows)}
    moved = 0
    for worker in range(workers):
        for i, (top, bottom) in enumerate(pairwise(grid.rows)):
            if (worker - i * columns) % workers < columns:
                moved += (bottom - top) * (grid.inner[-1] - by_left[(worker - i * inner) % workers])
        for j, (left, right) in enumerate(pairwise(grid.columns)):
            if (worker - j) % workers in row_remainders:
                moved += (right - left) * (grid.inner[-1] - by_right[(worker - j) % workers])
    return moved
