"""How does a worker compute a tile of a product from blocks? Panel by panel, the next one on its way meanwhile."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from paceline.matrices.cluster.blocks import Blocks
from paceline.matrices.cluster.placement import LEFT, RIGHT, Grid
from paceline.matrices.nodes import Matrix
from paceline.matrices.product_file import Heading, ProductFile

STRIP_ROWS = 512


def tile_bytes(grid: Grid, tile: tuple[int, int, int, int], itemsize: int) -> int:
    """What a worker needs for a tile: the result, two panels of each factor, and a strip per thread."""
    top, bottom, left, right = tile
    rows, columns = grid.rows[bottom] - grid.rows[top], grid.columns[right] - grid.columns[left]
    depth = grid.inner[1]  # the first is as deep as any
    return itemsize * (rows * columns + 2 * depth * (rows + columns) + 2 * STRIP_ROWS * columns)


class TileMaker:
    """Computes tiles on several threads, each of which multiplies strips of its own."""

    def __init__(self, blocks: Blocks, heading: Heading, threads: int) -> None:
        self._blocks = blocks
        self._dtype = np.dtype(heading.dtype)
        self._threads = threads

    def make(self, tile: tuple[int, int, int, int], file: ProductFile) -> dict[str, float]:
        """Compute a tile into the file, on the disk when this returns; seconds by phase."""
        top, bottom, left, right = tile
        grid = self._blocks.grid
        rows, columns = grid.rows[bottom] - grid.rows[top], grid.columns[right] - grid.columns[left]
        result = np.zeros((rows, columns), self._dtype)
        seconds = {"input": 0.0, "pull": 0.0, "compute": 0.0, "push": 0.0}
        waited, before = 0.0, dict(self._blocks.seconds)
        with (
            ThreadPoolExecutor(1, "paceline-fetch") as fetcher,
            ThreadPoolExecutor(self._threads, "paceline-multiply") as pool,
        ):
            count = grid.num_blocks[1]
            coming = fetcher.submit(self._panels, tile, 0)
            for inner in range(count):
                began = time.perf_counter()
                panels = coming.result()
                fetched = time.perf_counter()
                if inner + 1 < count:
                    coming = fetcher.submit(self._panels, tile, inner + 1)
                # In order: a sum has the same bits on whichever worker it is made.
                strips = [slice(start, min(start + STRIP_ROWS, rows)) for start in range(0, rows, STRIP_ROWS)]
                list(pool.map(lambda strip, panels=panels: _add(result, strip, *panels), strips))
                waited += fetched - began
                seconds["compute"] += time.perf_counter() - fetched
        # What it waited for is known as shares of what the fetching thread did.
        spent = {name: self._blocks.seconds[name] - before[name] for name in before}
        for name, share in spent.items():
            seconds[name] = waited * share / max(sum(spent.values()), 1e-9)
        began = time.perf_counter()
        file.write(grid.rows[top], grid.columns[left], result)
        file.sync()
        seconds["push"] = time.perf_counter() - began
        return seconds

    def _panels(self, tile: tuple[int, int, int, int], inner: int) -> tuple[Matrix, Matrix]:
        """The rows of the left factor and the columns of the right one that a tile needs, one block deep."""
        top, bottom, left, right = tile
        grid, blocks = self._blocks.grid, self._blocks
        depth = grid.inner[inner + 1] - grid.inner[inner]
        rows = np.empty((grid.rows[bottom] - grid.rows[top], depth), self._dtype)
        columns = np.empty((depth, grid.columns[right] - grid.columns[left]), self._dtype)
        for outer in range(top, bottom):
            blocks.fill(LEFT, outer, inner, rows[grid.rows[outer] - grid.rows[top] :][: self._length(LEFT, outer)])
        for outer in range(left, right):
            block = np.empty(blocks.shape_of(RIGHT, outer, inner), self._dtype)
            blocks.fill(RIGHT, outer, inner, block)
            start = grid.columns[outer] - grid.columns[left]
            columns[:, start : start + block.shape[1]] = block
        return rows, columns

    def _length(self, side: int, outer: int) -> int:
        edges = self._blocks.grid.rows if side == LEFT else self._blocks.grid.columns
        return edges[outer + 1] - edges[outer]


def _add(result: Matrix, strip: slice, rows: Matrix, columns: Matrix) -> None:
    result[strip] += rows[strip] @ columns
