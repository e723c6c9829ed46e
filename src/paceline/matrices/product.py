"""How is a product computed that does not fit into memory? Tile by tile, from disk to disk.

One thread reads the tiles of the next step and one writes the last result while the library multiplies on all cores.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paceline.errors import ConfigError
from paceline.matrices.nodes import Matrix, Node, Product, filling_elements
from paceline.matrices.plan import (
    STRIP_ROWS,
    Plan,
    Shape,
    in_bytes,
    memory_for,
    parse_bytes,
    plan_product,
    room_in,
)
from paceline.matrices.product_file import (
    Heading,
    ProductFile,
    check_out,
    plan_of,
    product_file,
    read_journal,
)
from paceline.matrices.sources import fingerprint

# Tiles are whole rows down to this height, then they get narrower as well.
LOW_TILE = 64
# The share of the work that is done.
Watch = Callable[[float], None]


class Work(NamedTuple):
    """What a product took. `compute`, `read` and `write` are seconds that the main thread spent on it, or waiting."""

    plan: Plan
    tiles: int
    tiles_found: int
    compute: float
    read: float
    write: float
    bytes_read: int
    bytes_written: int


class TileStep(NamedTuple):
    """One multiplication: rows from `row`, columns from `column`, inner from `start` on."""

    row: int
    start: int
    column: int
    is_first: bool
    is_last: bool


class PreparedProduct(NamedTuple):
    """A product that can be computed: its disk has room, and its tiles fit into memory."""

    left: Node
    right: Node
    out: Path
    heading: Heading

    @property
    def shape(self) -> Shape:
        return Shape(*self.left.shape, self.right.shape[1])


def prepare_product(left: Node, right: Node, out: Path, memory: int, block: int | None = None) -> PreparedProduct:
    """Look at everything that can be wrong before anything is written; find what an earlier attempt has left."""
    shape = Shape(*left.shape, right.shape[1])
    dtype = np.result_type(left.dtype, right.dtype)
    plan = plan_product(shape, dtype.itemsize, memory, block)
    check_out(out, (shape.rows, shape.columns), dtype)
    heading = Heading(fingerprint(left), fingerprint(right), (shape.rows, shape.columns), str(dtype), (*plan,))
    return PreparedProduct(left, right, out, _earlier(out, heading, shape, memory if block is None else None))


def multiply_to_file(product: PreparedProduct, watch: Watch = lambda _: None) -> Work:
    """Write a product of two matrices within its memory."""
    with product_file(product.out, product.heading) as file:
        plan = plan_of(product.heading)
        work = Multiplication(product.left, product.right, product.shape, plan, file).run(watch)
        file.finish()
    return work


def _earlier(out: Path, heading: Heading, shape: Shape, memory: int | None) -> Heading:
    """The same product as an earlier attempt has cut it, if its tiles fit into the memory, too."""
    found = read_journal(out)
    if memory is None or found is None or not found[0].is_of(heading):
        return heading
    needed = plan_of(found[0]).num_bytes(shape, np.dtype(heading.dtype).itemsize)
    return found[0] if needed <= room_in(memory) else heading


def write_npy(node: Node, out: Path, memory: int | str) -> None:
    """Write any matrix as a .npy file within a memory limit."""
    limit = parse_bytes(memory)
    if isinstance(node, Product):
        multiply_to_file(prepare_product(node.left, node.right, out, limit))
        return
    rows, columns = node.shape
    check_out(out, node.shape, node.dtype)
    height, width = tile_within(node, limit)
    heading = Heading(fingerprint(node), "", node.shape, str(node.dtype), (height, 0, width))
    with product_file(out, heading) as file:
        for row in range(0, rows, height):
            for column in range(0, columns, width):
                tile = np.empty((min(height, rows - row), min(width, columns - column)), node.dtype)
                node.fill(row, column, tile)
                file.write(row, column, tile)
        file.finish()


def tile_within(node: Node, memory: int) -> tuple[int, int]:
    """The sides of the largest tile of a matrix that can be filled within a memory limit: whole rows where they fit."""
    (height, width), size, room = node.shape, node.dtype.itemsize, room_in(memory)

    def needed() -> int:
        return size * (height * width + filling_elements(node, height, width))

    while needed() > room and (height > 1 or width > 1):
        # Panels of a product inside are as deep whatever the tile, so neither side should be far below the other.
        if height >= width or height > LOW_TILE:
            height = -(-height // 2)
        else:
            width = -(-width // 2)
    if needed() > room:
        raise ConfigError(
            f"`memory` is {in_bytes(memory)}, too little for a single element with what it takes to compute it",
            f'memory="{in_bytes(memory_for(needed()))}" would do',
        )
    return height, width


class Multiplication:
    """One product under way: its buffers, and the threads beside."""

    def __init__(self, left: Node, right: Node, shape: Shape, plan: Plan, file: ProductFile) -> None:
        self._left, self._right, self._shape, self._plan, self._file = left, right, shape, plan, file
        self._is_cut = plan.inner < shape.inner
        self._dtype = np.dtype(file.heading.dtype)
        self._lefts = [self._room(plan.rows * plan.inner) for _ in range(2)]
        self._rights = [self._room(plan.inner * plan.columns) for _ in range(1 + self._is_cut)]
        self._results = [self._room(plan.rows * plan.columns) for _ in range(2)]
        self._strip = self._room(min(STRIP_ROWS, plan.rows) * plan.columns if self._is_cut else 0)
        self._seconds = {"compute": 0.0, "read": 0.0, "write": 0.0}
        self._bytes_read = 0
        self._bytes_written = 0

    def run(self, watch: Watch) -> Work:
        """Compute all tiles that are not done."""
        found = len(self._file.done)
        steps, num_steps = self._steps(), self._num_steps()
        coming = next(steps, None)
        writes: deque[Future[None]] = deque()
        tiles = 0
        with ThreadPoolExecutor(1, "paceline-read") as reader, ThreadPoolExecutor(1, "paceline-write") as writer:
            reading = reader.submit(self._read, 0, coming) if coming else None
            panel, number = -1, 0
            while coming is not None:
                assert reading is not None
                step, coming = coming, next(steps, None)
                if not self._is_cut and step.column != panel:
                    # Nothing else uses the one right tile now.
                    self._timed("read", self._fill_right, 0, step)
                    panel = step.column
                self._timed("read", reading.result)
                if coming is not None:
                    reading = reader.submit(self._read, number + 1, coming)
                if step.is_first and len(writes) > 1:
                    self._timed("write", writes.popleft().result)
                self._timed("compute", self._multiply, number, step, tiles)
                if step.is_last:
                    writes.append(writer.submit(self._write, step, tiles))
                    tiles += 1
                number += 1
                watch(min(1.0, number / num_steps))
            for write in writes:
                self._timed("write", write.result)
        return Work(
            plan=self._plan, tiles=len(self._file.done), tiles_found=found, bytes_read=self._bytes_read,
            bytes_written=self._bytes_written, **self._seconds,
        )  # fmt: skip

    def _num_steps(self) -> int:
        shape, plan = self._shape, self._plan
        rows, inner, columns = (-(-side // tile) for side, tile in zip(shape, plan, strict=True))
        return max(1, (rows * columns - len(self._file.done)) * inner)

    def _steps(self) -> Iterator[TileStep]:
        shape, plan = self._shape, self._plan
        last = (shape.inner - 1) // plan.inner * plan.inner
        for column in range(0, shape.columns, plan.columns):
            for row in range(0, shape.rows, plan.rows):
                if (row, column) not in self._file.done:
                    for start in range(0, shape.inner, plan.inner):
                        yield TileStep(row, start, column, start == 0, start == last)

    def _read(self, number: int, step: TileStep) -> None:
        """On the reader's thread: the left tile of a step, and the right one where there are two."""
        tile = self._left_tile(number, step)
        self._left.fill(step.row, step.start, tile)
        self._bytes_read += tile.nbytes
        if self._is_cut:
            self._fill_right(number, step)

    def _fill_right(self, number: int, step: TileStep) -> None:
        tile = self._right_tile(number, step)
        self._right.fill(step.start, step.column, tile)
        self._bytes_read += tile.nbytes

    def _multiply(self, number: int, step: TileStep, tile: int) -> None:
        left, right = self._left_tile(number, step), self._right_tile(number, step)
        result = self._result_tile(tile, step)
        if step.is_first:
            np.matmul(left, right, out=result)
            return
        height = min(STRIP_ROWS, self._plan.rows)
        for row in range(0, len(left), height):
            part = left[row : row + height]
            strip = _view(self._strip, len(part), right.shape[1])
            np.matmul(part, right, out=strip)
            result[row : row + height] += strip

    def _write(self, step: TileStep, tile: int) -> None:
        """On the writer's thread."""
        result = self._result_tile(tile, step)
        self._file.write(step.row, step.column, result)
        self._file.finish_tile(step.row, step.column)
        self._bytes_written += result.nbytes

    def _timed(self, what: str, work: Callable[..., Any], *arguments: Any) -> None:
        began = time.perf_counter()
        work(*arguments)
        self._seconds[what] += time.perf_counter() - began

    def _left_tile(self, number: int, step: TileStep) -> Matrix:
        return _view(self._lefts[number % 2], self._height(step), self._depth(step))

    def _right_tile(self, number: int, step: TileStep) -> Matrix:
        return _view(self._rights[number % len(self._rights)], self._depth(step), self._width(step))

    def _result_tile(self, tile: int, step: TileStep) -> Matrix:
        return _view(self._results[tile % 2], self._height(step), self._width(step))

    def _height(self, step: TileStep) -> int:
        return min(self._plan.rows, self._shape.rows - step.row)

    def _depth(self, step: TileStep) -> int:
        return min(self._plan.inner, self._shape.inner - step.start)

    def _width(self, step: TileStep) -> int:
        return min(self._plan.columns, self._shape.columns - step.column)

    def _room(self, size: int) -> Matrix:
        return np.empty(size, self._dtype)


def _view(room: Matrix, rows: int, columns: int) -> Matrix:
    return room[: rows * columns].reshape(rows, columns)
