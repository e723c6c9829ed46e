"""How many bytes does training on a row move in a GPU's memory? An estimate, for the diagnosis.

    bytes per row = row + 2 × SECTOR × sectors × keys

`row` is the row itself as it lies there: its label, its columns with numbers and bits, and the keys and values that it
lists. `keys` are the distinct keys that the rows of a launch list, per row: each key's numbers come from memory once
and go back once, because all rows of a launch find them in the GPU's cache. Hot columns stay in registers. `sectors` is
how many parts of 32 bytes, which is what memory reads and writes at a time, the numbers of a key touch on average: from
a place that `step` divides, that is 1 + (4 × width − step) / SECTOR, where `step` is the largest power of two that
divides both 4 × width and SECTOR. What is sorted in sync is not counted: that of small batches stays in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from paceline.parameters.layout import Group, TableLayout
from paceline.parameters.optimizers import formula_of
from paceline.settings import OptimizerConfig
from paceline.torch.sparse.rows import BYTES_PER_START, Packed

SECTOR = 32
BYTES_PER_FLOAT = 4
# The flags that let a group of columns remember nothing.
OPTIMIZER_FLAGS = {"weight": "--optimizer sgd", "factors": "--set factors.optimizer=sgd"}


def bytes_per_row(rows: Packed, per_launch: int, widths: Sequence[int]) -> list[float]:
    """The estimates for rows like these, `per_launch` of them in a launch, for each number of floats per key."""
    count = len(rows.labels)
    if not count:
        return [0.0 for _ in widths]
    lengths = rows.lengths[:per_launch]
    keys = len(np.unique(rows.keys[: int(lengths.sum(dtype=np.int64))])) / len(lengths)
    own = num_bytes(rows) / count + BYTES_PER_START
    return [own + 2 * SECTOR * sectors(width) * keys for width in widths]


def sectors(width: int) -> float:
    """How many sectors the numbers of a key touch on average.

    >>> [sectors(width) for width in (1, 2, 8, 3, 18)]
    [1.0, 1.0, 1.0, 1.25, 3.0]
    """
    size = BYTES_PER_FLOAT * width
    return 1 + (size - math.gcd(size, SECTOR)) / SECTOR


def num_bytes(rows: Packed) -> int:
    """The size of rows in the memory of a GPU, but for where their keys begin."""
    return sum(array.nbytes for array in rows if array is not None)


def narrower_tables(layout: TableLayout) -> dict[str, int]:
    """Numbers per key of tables that are narrower, by the flags that make them so."""
    found = {}
    for group in layout.groups:
        for flags, changed in _changes(group):
            if changed.width < group.width:
                found[flags] = layout.width - group.width + changed.width
    return found


def _changes(group: Group) -> Iterator[tuple[str, Group]]:
    """What flags could make of a group of columns."""
    optimizer = group.optimizer
    plain = msgspec.structs.replace(optimizer, name="sgd", own={})
    if group.name in OPTIMIZER_FLAGS:
        yield OPTIMIZER_FLAGS[group.name], msgspec.structs.replace(group, optimizer=plain)
    if group.name == "factors":
        if "row_wise" in formula_of(optimizer.name).settings:
            shared: OptimizerConfig = msgspec.structs.replace(optimizer, own={**optimizer.own, "row_wise": 1.0})
            yield "--set factors.row_wise=true", msgspec.structs.replace(group, optimizer=shared)
        if group.dim > 1:
            yield f"--dim {group.dim // 2}", msgspec.structs.replace(group, dim=group.dim // 2)
