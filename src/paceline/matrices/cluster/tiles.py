"""How does a worker compute a tile of a product from blocks? Panel by panel, fetching the next one meanwhile."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from paceline.matrices.cluster.blocks import Blocks
from paceline.matrices.cluster.placement import LEFT, RIGHT, Rectangle
from paceline.matrices.nodes import Matrix
from paceline.matrices.plan import STRIP_ROWS
from paceline.matrices.product_file import ProductFile


def compute_tile(tile: Rectangle, blocks: Blocks, file: ProductFile, threads: int) -> dict[str, float]:
    """Compute a tile and write it, so that it is on the disk when this returns; the seconds by phase.

    One thread fetches the next panels while `threads` others each multiply strips of the tile.
    """
    grid = blocks.grid
    rows = grid.rows[tile.bottom] - grid.rows[tile.top]
    result = np.zeros((rows, grid.columns[tile.right] - grid.columns[tile.left]), file.heading.dtype)
    strips = [slice(start, min(start + STRIP_ROWS, rows)) for start in range(0, rows, STRIP_ROWS)]
    seconds = {"input": 0.0, "pull": 0.0, "compute": 0.0, "push": 0.0}
    waited, before = 0.0, dict(blocks.seconds)
    with ThreadPoolExecutor(1, "paceline-fetch") as fetcher, ThreadPoolExecutor(threads, "paceline-multiply") as pool:
        count = grid.num_blocks[1]
        coming = fetcher.submit(_panels, tile, 0, blocks)
        for inner in range(count):
            began = time.perf_counter()
            panels = coming.result()
            fetched = time.perf_counter()
            if inner + 1 < count:
                coming = fetcher.submit(_panels, tile, inner + 1, blocks)
            # In order: a sum has the same bits on every worker.
            list(pool.map(lambda strip, panels=panels: _add(result, strip, *panels), strips))
            waited += fetched - began
            seconds["compute"] += time.perf_counter() - fetched
    # The time spent waiting is split as the fetching thread's time was.
    spent = {name: blocks.seconds[name] - before[name] for name in before}
    for name, share in spent.items():
        seconds[name] = waited * share / max(sum(spent.values()), 1e-9)
    began = time.perf_counter()
    file.write(grid.rows[tile.top], grid.columns[tile.left], result)
    file.sync()
    seconds["push"] = time.perf_counter() - began
    return seconds


def _panels(tile: Rectangle, inner: int, blocks: Blocks) -> tuple[Matrix, Matrix]:
    """The rows of the left factor and the columns of the right one that a tile needs, one block deep."""
    grid = blocks.grid
    depth, top, left = grid.inner[inner + 1] - grid.inner[inner], grid.rows[tile.top], grid.columns[tile.left]
    rows = np.empty((grid.rows[tile.bottom] - top, depth), blocks.dtype)
    columns = np.empty((depth, grid.columns[tile.right] - left), blocks.dtype)
    for outer in range(tile.top, tile.bottom):
        blocks.fill(LEFT, outer, inner, rows[grid.rows[outer] - top : grid.rows[outer + 1] - top])
    for outer in range(tile.left, tile.right):
        block = np.empty(blocks.shape_of(RIGHT, outer, inner), blocks.dtype)
        blocks.fill(RIGHT, outer, inner, block)
        columns[:, grid.columns[outer] - left : grid.columns[outer + 1] - left] = block
    return rows, columns


def _add(result: Matrix, strip: slice, rows: Matrix, columns: Matrix) -> None:
    result[strip] += rows[strip] @ columns
