"""How is a product cut into tiles so that it stays within a memory limit and reads little twice?

A step multiplies a tile of the left factor, `rows` × `inner`, by one of the right factor, `inner` × `columns`. While it
does, the next left tile is read and the last finished result tile is written, so there are two of each. Where the inner
side is not cut, a right tile serves all left tiles of its columns, and one is enough; otherwise there are two, and a
strip for the product that is added up.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import NamedTuple

from paceline.errors import ConfigError

# What the library of matrix products takes for itself while it multiplies.
OVERHEAD_BYTES = 48_000_000
# What Python and its libraries need. A limit up to `BARE_BYTES` includes none of that, a limit of `BARE_BYTES` plus
# twice that much includes all of it, and limits in between a growing part.
PYTHON_BYTES = 120_000_000
BARE_BYTES = 200_000_000
# Products of narrower tiles are slow.
GOOD_SIDE = 512
SMALLEST_SIDE = 16
STRIP_ROWS = 512
MOST_CUTS = 4096
# Blocks are counted one by one, in memory and in journals.
MOST_BLOCKS_PER_SIDE = 2_000
# What adding up costs, and what a number read costs, in numbers read.
ADDING_WEIGHT = 0.3


class Shape(NamedTuple):
    """The sides of a product: the left factor is rows × inner, the right one inner × columns."""

    rows: int
    inner: int
    columns: int


class Plan(NamedTuple):
    """The sides of tiles; those at the far ends are smaller."""

    rows: int
    inner: int
    columns: int

    def num_bytes(self, shape: Shape, itemsize: int) -> int:
        """What all buffers take together."""
        is_cut = self.inner < shape.inner
        left, right = self.rows * self.inner, self.inner * self.columns
        result = self.rows * self.columns
        strip = min(STRIP_ROWS, self.rows) * self.columns if is_cut else 0
        return itemsize * (2 * left + (2 if is_cut else 1) * right + 2 * result + strip)


def room_in(memory: int) -> int:
    """What a memory limit leaves for tiles."""
    return memory - OVERHEAD_BYTES - min(PYTHON_BYTES, max(0, memory - BARE_BYTES) // 2)


def memory_for(num_bytes: int) -> int:
    """The smallest limit that leaves this many bytes for tiles.

    >>> [room_in(memory_for(megabytes * 10**6)) // 10**6 for megabytes in (1, 200, 1000)]
    [1, 200, 1000]
    """
    bare = num_bytes + OVERHEAD_BYTES
    return max(bare, min(2 * bare - BARE_BYTES, bare + PYTHON_BYTES))


def plan_product(shape: Shape, itemsize: int, memory: int, block: int | None = None) -> Plan:
    """Tiles for a product within `memory` bytes; with `block`, tiles of that side, which must fit."""
    if block is not None:
        check_block(shape, block)
    for least in (GOOD_SIDE, SMALLEST_SIDE) if block is None else ():
        if plans := _plans(shape, itemsize, room_in(memory), least):
            return min(plans, key=lambda plan: _cost(plan, shape))
    plan = Plan(*(min(block or SMALLEST_SIDE, side) for side in shape))
    needed = memory_for(plan.num_bytes(shape, itemsize))
    if needed > memory:
        tiles = f"tiles of {plan.rows:,} × {plan.inner:,} and {plan.inner:,} × {plan.columns:,} with their result"
        raise ConfigError(f"`memory` is {in_bytes(memory)}, too little for {tiles}", f"--memory {in_bytes(needed)}")
    return plan


def check_block(shape: Shape, block: int) -> None:
    """Raise if blocks of this side are too many."""
    count = -(-max(shape) // block)
    if count > MOST_BLOCKS_PER_SIDE:
        message = f"`block` is {block:,}, which gives {count:,} blocks; the limit is {MOST_BLOCKS_PER_SIDE:,}"
        raise ConfigError(message, f"--block {least_block(shape)} or more, or leave it out")


def least_block(shape: Shape) -> int:
    """The smallest side of blocks that are not too many."""
    return -(-max(shape) // MOST_BLOCKS_PER_SIDE)


def _plans(shape: Shape, itemsize: int, room: int, least: int) -> list[Plan]:
    """Every way to cut inner side and columns evenly for which there is room for enough rows."""
    found = []
    for inner in _even_cuts(shape.inner, least):
        for columns in _even_cuts(shape.columns, least):
            rows = bisect_right(
                range(1, shape.rows + 1), room, key=lambda rows: Plan(rows, inner, columns).num_bytes(shape, itemsize)
            )
            if rows >= min(least, shape.rows):
                # The last tile should not be a sliver.
                rows = -(-shape.rows // -(-shape.rows // rows))
                found.append(Plan(rows, inner, columns))
                break  # fewer columns only read more
    return found


def _even_cuts(size: int, least: int) -> list[int]:
    """Sides of tiles when `size` is cut into 1, 2, 3, … of them, down to `least`."""
    sides = [-(-size // count) for count in range(1, MOST_CUTS)]
    return [side for side in dict.fromkeys(sides) if side >= min(least, size)]


def _cost(plan: Plan, shape: Shape) -> float:
    """Numbers read, and numbers added to results that wait for more, as if they were read."""
    panels, stripes = -(-shape.columns // plan.columns), -(-shape.rows // plan.rows)
    chunks = -(-shape.inner // plan.inner)
    read = shape.rows * shape.inner * panels + shape.inner * shape.columns * (stripes if chunks > 1 else 1)
    added = 3 * ADDING_WEIGHT * shape.rows * shape.columns * (chunks - 1)
    # Short row panels cost each their own call.
    return read + added + 1e4 * panels * stripes * chunks


UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def parse_bytes(text: int | str) -> int:
    """Bytes as people write them.

    >>> parse_bytes("4GB"), parse_bytes("512 MiB"), parse_bytes(1000)
    (4000000000, 536870912, 1000)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(text))
    if not found or found[2].upper() not in UNITS or not float(found[1]) > 0:
        raise ConfigError(f"`memory` is `{text}`; it must be a number of bytes such as 4GB or 512MB", "--memory 4GB")
    return int(float(found[1]) * UNITS[found[2].upper()])


def in_bytes(count: float) -> str:
    """Bytes for people, rounded up to three digits.

    >>> in_bytes(1), in_bytes(1_234_567), in_bytes(4e9)
    ('1B', '1.24MB', '4GB')
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= size:
            return f"{-(-count * 100 // size) / 100:g}{unit}"
    return f"{int(count)}B"
