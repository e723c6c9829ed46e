"""How is a product computed that does not fit into memory? Tile by tile, from disk to disk.

One thread reads the tiles of the next step and another writes the last result while NumPy multiplies on all cores.
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
from paceline.matrices.plan import STRIP_ROWS, Plan, Shape, in_bytes, memory_for, parse_bytes, plan_product, room_in
from paceline.matrices.product_file import Heading, ProductFile, check_out, product_file, read_journal
from paceline.matrices.sources import fingerprint

# Tiles are whole rows down to this height; below it they get narrower as well.
LOW_TILE = 64


class Work(NamedTuple):
    """What a product took. `compute`, `read` and `write` are seconds that the main thread spent on it, or waiting."""

    plan: Plan
    tiles: int
    tiles_found: int
    bytes_read: int
    bytes_written: int
    compute: float
    read: float
    write: float


class TileStep(NamedTuple):
    """One multiplication: where its tiles begin, and the tiles themselves, which are views of shared buffers."""

    row: int
    start: int
    column: int
    left: Matrix
    right: Matrix
    result: Matrix
    is_last: bool


class PreparedProduct(NamedTuple):
    """A product that can be computed: its disk has room, and its tiles fit into memory."""

    left: Node
    right: Node
    out: Path
    heading: Heading


def prepare_product(left: Node, right: Node, out: Path, memory: int, block: int | None = None) -> PreparedProduct:
    """Check everything that can go wrong before anything is written, and find what an earlier attempt left.

    Without `block`, the tiles of an earlier attempt are used again if they fit into the memory.
    """
    shape, dtype = Shape(*left.shape, right.shape[1]), np.result_type(left.dtype, right.dtype)
    plan = plan_product(shape, dtype.itemsize, memory, block)
    check_out(out, (shape.rows, shape.columns), dtype)
    heading = Heading(fingerprint(left), fingerprint(right), (shape.rows, shape.columns), str(dtype), plan)
    found = read_journal(out)
    if block is None and found and found[0].is_like(heading):
        fits = found[0].plan.num_bytes(shape, dtype.itemsize) <= room_in(memory)
        heading = found[0] if fits else heading
    return PreparedProduct(left, right, out, heading)


def multiply_to_file(product: PreparedProduct, watch: Callable[[float], None] = lambda _: None) -> Work:
    """Write a product of two matrices within its memory; `watch` is told the share that is done."""
    with product_file(product.out, product.heading) as file:
        work = Multiplication(product, file).run(watch)
        file.finish()
    return work


def write_npy(node: Node, out: Path, memory: int | str) -> None:
    """Write any matrix as a .npy file within a memory limit."""
    limit = parse_bytes(memory)
    if isinstance(node, Product):
        multiply_to_file(prepare_product(node.left, node.right, out, limit))
        return
    rows, columns = node.shape
    check_out(out, node.shape, node.dtype)
    height, width = _tile_within(node, limit)
    with product_file(out, Heading(fingerprint(node), "", node.shape, str(node.dtype), Plan(height, 0, width))) as file:
        for row in range(0, rows, height):
            for column in range(0, columns, width):
                tile = np.empty((min(height, rows - row), min(width, columns - column)), node.dtype)
                node.fill(row, column, tile)
                file.write(row, column, tile)
        file.finish()


def _tile_within(node: Node, memory: int) -> tuple[int, int]:
    """The sides of the largest tile of a matrix that can be filled within a memory limit: whole rows if they fit."""
    (height, width), size, room = node.shape, node.dtype.itemsize, room_in(memory)

    def needed() -> int:
        return size * (height * width + filling_elements(node, height, width))

    while needed() > room and (height > 1 or width > 1):
        # The panels of an inner product are equally deep for every tile, so neither side should be much shorter.
        if height >= width or height > LOW_TILE:
            height = -(-height // 2)
        else:
            width = -(-width // 2)
    if needed() > room:
        hint = f'memory="{in_bytes(memory_for(needed()))}"'
        raise ConfigError(f"`memory` is {in_bytes(memory)}, too little to compute a single element", hint)
    return height, width


class Multiplication:
    """One product in progress: its buffers, and what it has cost so far."""

    def __init__(self, product: PreparedProduct, file: ProductFile) -> None:
        self._product, self._file = product, file
        self._shape, self._plan = Shape(*product.left.shape, product.right.shape[1]), product.heading.plan
        self._is_cut = self._plan.inner < self._shape.inner
        rows, inner, columns = self._plan
        self._lefts = self._buffers(2, rows * inner)
        self._rights = self._buffers(1 + self._is_cut, inner * columns)
        self._results = self._buffers(2, rows * columns)
        self._strip = self._buffers(1, min(STRIP_ROWS, rows) * columns if self._is_cut else 0)[0]
        self._seconds = {"compute": 0.0, "read": 0.0, "write": 0.0}

    def run(self, watch: Callable[[float], None]) -> Work:
        """Compute all tiles that are not in the file yet."""
        found = len(self._file.done)
        rows, inner, columns = (-(-side // tile) for side, tile in zip(self._shape, self._plan, strict=True))
        num_steps = max(1, (rows * columns - found) * inner)
        writes: deque[Future[None]] = deque()
        panel, number, bytes_read, bytes_written = -1, 0, 0, 0
        with ThreadPoolExecutor(1, "paceline-read") as reader, ThreadPoolExecutor(1, "paceline-write") as writer:
            steps = self._steps()
            coming = next(steps, None)
            reading = reader.submit(self._read, coming)
            while (step := coming) is not None:
                coming = next(steps, None)
                bytes_read += step.left.nbytes
                if self._is_cut or step.column != panel:
                    bytes_read += step.right.nbytes
                    panel = step.column
                    if not self._is_cut:
                        # Nothing else uses the one right tile now.
                        self._timed("read", self._product.right.fill, step.start, step.column, step.right)
                self._timed("read", reading.result)
                reading = reader.submit(self._read, coming)
                if step.start == 0 and len(writes) > 1:
                    self._timed("write", writes.popleft().result)
                self._timed("compute", self._multiply, step)
                if step.is_last:
                    writes.append(writer.submit(self._write, step))
                    bytes_written += step.result.nbytes
                number += 1
                watch(min(1.0, number / num_steps))
            for write in writes:
                self._timed("write", write.result)
        return Work(self._plan, len(self._file.done), found, bytes_read, bytes_written, **self._seconds)

    def _steps(self) -> Iterator[TileStep]:
        shape, plan = self._shape, self._plan
        tiles = steps = 0
        for column in range(0, shape.columns, plan.columns):
            width = min(plan.columns, shape.columns - column)
            for row in range(0, shape.rows, plan.rows):
                if (row, column) in self._file.done:
                    continue
                height = min(plan.rows, shape.rows - row)
                result = _view(self._results[tiles % 2], height, width)
                tiles += 1
                for start in range(0, shape.inner, plan.inner):
                    depth = min(plan.inner, shape.inner - start)
                    left = _view(self._lefts[steps % 2], height, depth)
                    right = _view(self._rights[steps % len(self._rights)], depth, width)
                    steps += 1
                    yield TileStep(row, start, column, left, right, result, start + depth == shape.inner)

    def _read(self, step: TileStep | None) -> None:
        """On the reader's thread: the left tile of a step, and the right one if the inner side is cut."""
        if step is not None:
            self._product.left.fill(step.row, step.start, step.left)
            if self._is_cut:
                self._product.right.fill(step.start, step.column, step.right)

    def _multiply(self, step: TileStep) -> None:
        if step.start == 0:
            np.matmul(step.left, step.right, out=step.result)
            return
        height = min(STRIP_ROWS, self._plan.rows)
        for row in range(0, len(step.left), height):
            part = step.left[row : row + height]
            strip = _view(self._strip, len(part), step.right.shape[1])
            np.matmul(part, step.right, out=strip)
            step.result[row : row + height] += strip

    def _write(self, step: TileStep) -> None:
        """On the writer's thread."""
        self._file.write(step.row, step.column, step.result)
        self._file.finish_tile(step.row, step.column)

    def _timed(self, what: str, work: Callable[..., Any], *arguments: Any) -> None:
        began = time.perf_counter()
        work(*arguments)
        self._seconds[what] += time.perf_counter() - began

    def _buffers(self, count: int, size: int) -> list[Matrix]:
        return [np.empty(size, self._product.heading.dtype) for _ in range(count)]


def _view(room: Matrix, rows: int, columns: int) -> Matrix:
    return room[: rows * columns].reshape(rows, columns)
