"""How do many workers update the same few hot keys without waiting for each other's cache lines?

Each worker of one process has its own copies of the hottest keys and the bias, in rows of the table that nobody else
touches, and merges them with the table now and then. At pace async it merges the hottest most often. At pace N it
merges all of them after every few clocks, and only then advances its clock, so that a worker that passes the gate finds
in the table what the gate promises.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from paceline.kernels.jit import compiled
from paceline.kernels.keys import Keys, key_dtype
from paceline.kernels.rules import Table, picked_by_type
from paceline.kernels.tables import row_step_size, row_width

Floats = NDArray[np.float32]

FIRST_MERGE = 256
MERGE_GROWTH = 4
# Not all keys of a row move the same way: of the bound that `mean_products` gives, this much was found to be right.
TOGETHER = 0.25
ONE = np.uint64(1)
NO_KEYS: Keys = np.zeros(0, np.uint32)
# For how many rows to come there is room in `ahead`.
ROOM_AHEAD = np.uint64(16)
# Where a worker counts the clocks that it has not yet told the others about.
HIDDEN = 1


class Private(NamedTuple):
    """A worker's own copies of the hottest keys: the first `num_hot` of the table, followed by the bias.

    They begin at row `first` of the table; `base` is what they were when last merged, and `num_rows[0]` counts the
    worker's rows so far. At pace N all are merged every `clocks` clocks, and `num_rows[HIDDEN]` counts those since the
    last time; at async `clocks` is 0. How much of a change is merged depends on the number of workers, the rows per
    update, the `curvature` of the loss and the keys' `products` (`mean_products`).

    `ahead` is where loops over single rows note the rows of the table for the keys of the rows to come (`name_keys`).
    """

    first: int
    num_hot: int
    base: Floats
    num_rows: NDArray[np.int64]
    num_workers: int
    batch_size: int
    curvature: float
    products: Floats
    clocks: int = 0
    ahead: Keys = NO_KEYS


class NoCopies(Private):
    """A worker without copies. Having a type of its own, it gets loops that test no key for being hot."""


def _name_own_keys(private: Any, block: Any, rows: Any, i: Any) -> None:
    # In the integers of keys, so that a vector holds as many of them as possible.
    kind = private.ahead.dtype.type
    first, num_hot, row = kind(private.first), kind(private.num_hot), rows[i]
    start = np.uint64(block.offsets[row])
    count = np.uint64(block.offsets[row + 1]) - start
    room = np.uint64(private.ahead.size) // ROOM_AHEAD
    at = np.uint64(i) % ROOM_AHEAD * room
    for k in range(count):
        key = kind(block.keys[start + k])
        private.ahead[at + k] = kind(key + first) if key < num_hot else key


def _name_no_keys(private: Any, block: Any, rows: Any, i: Any) -> None:
    pass


def _own_names(private: Any, block: Any, rows: Any, i: Any) -> Any:
    room = np.uint64(private.ahead.size) // ROOM_AHEAD
    return private.ahead, np.uint64(i) % ROOM_AHEAD * room - np.uint64(block.offsets[rows[i]])


def _no_names(private: Any, block: Any, rows: Any, i: Any) -> Any:
    return block.keys, np.uint64(0)


# name_keys(private, block, rows, i): note in which row of the table a worker reads and writes each key of row `rows[i]`
# of a block. It pays to do this once, because it takes as long as using them.
name_keys = picked_by_type({Private: register_jitable(_name_own_keys), NoCopies: register_jitable(_name_no_keys)})
# names_of(private, block, rows, i): those rows of the table, as an array and what to add to a place in the block.
names_of = picked_by_type({Private: register_jitable(_own_names), NoCopies: register_jitable(_no_names)})


def with_room_ahead(private: Private, longest_row: int) -> Private:
    """The same copies, with room to note the keys of rows that have up to `longest_row` nonzeros.

    The copies are behind all keys, so their rows may need wider integers than keys.
    """
    kind = key_dtype(private.first + private.num_hot)
    return private._replace(ahead=np.empty(int(ROOM_AHEAD) * longest_row, kind))


@compiled
def replace_keys(keys: Keys, num_hot: int, first: int) -> None:
    """Put the rows of a worker's own copies, from `first` on, in the place of the `num_hot` hottest keys."""
    hot = np.uint64(num_hot)
    for i in range(keys.size):
        key = np.uint64(keys[i])
        keys[i] = key + np.uint64(first) if key < hot else key


@compiled
def merge(groups: Any, table: Table, shared: int, private: Private, at: int, count: int, num_rows: int) -> None:
    """Add what a worker has changed in `count` of its copies, from `at` on, in its last `num_rows` rows, to the table
    from row `shared` on, and take the table's numbers over.

    All W workers go from about the same point towards the same optimum. If each covers much of the way between two
    merges, the sum overshoots. With c = step size × curvature × the key's `products`, summed over updates, a worker
    covers about c / (1 + c) of the way. All of them together should cover the whole way at most, so (1 + c) / (W c) of
    each change is added, or all of it if that is more than 1. The same goes for what the optimizer remembers, and for
    the other columns of the key, whose step is that of the first.
    """
    step = np.int64(row_width(groups))
    table_at, copy_at, base_at = shared * step, (private.first + at) * step, at * step
    base = private.base
    bent = np.float32(TOGETHER * private.curvature * max(1, num_rows // private.batch_size))
    workers, one = np.float32(private.num_workers), np.float32(1)
    for i in range(count):
        c = bent * private.products[at + i] * row_step_size(groups, table, np.uint64(copy_at + i * step))
        share = min(one, (one + c) / (workers * c))
        for j in range(i * step, (i + 1) * step):
            merged = table[table_at + j] + share * (table[copy_at + j] - base[base_at + j])
            table[table_at + j] = merged
            table[copy_at + j] = merged
            base[base_at + j] = merged


@compiled
def merge_due(arrays: Any, private: Private, new_rows: int) -> None:
    """Merge the copies that have become due within the last `new_rows` rows: rank r about every 4 r rows.

    Keys are ranked by how often they occur, about as 1 / r, so each key is merged after about as many changes.
    """
    table, num_hot, row = arrays.numbers, private.num_hot, private.num_rows[0]
    merge(arrays.bias_groups, table, arrays.bias, private, num_hot, 1, FIRST_MERGE)
    start, stop, period = 0, min(FIRST_MERGE, num_hot), FIRST_MERGE
    while start < num_hot and row // period != (row - new_rows) // period:
        merge(arrays.groups, table, start, private, start, stop - start, period)
        start, stop, period = stop, min(stop * MERGE_GROWTH, num_hot), period * MERGE_GROWTH


@compiled
def merge_hidden(arrays: Any, private: Private) -> None:
    """Merge all copies at pace N: what was hidden from the others is in the table now."""
    table, num_rows = arrays.numbers, private.num_rows[HIDDEN] * private.batch_size
    merge(arrays.bias_groups, table, arrays.bias, private, private.num_hot, 1, num_rows)
    merge(arrays.groups, table, 0, private, 0, private.num_hot, num_rows)
    private.num_rows[HIDDEN] = 0


def _merge_nothing(private: Any, arrays: Any, new_rows: Any) -> None:
    pass


def _merge_due(private: Any, arrays: Any, new_rows: Any) -> None:
    merge_due(arrays, private, new_rows)


def _merge_hidden(private: Any, arrays: Any, new_rows: Any) -> None:
    merge_hidden(arrays, private)


# The same for workers that may have no copies. Their tables may have any columns, which merges would not compile for.
merge_own_due = picked_by_type({Private: register_jitable(_merge_due), NoCopies: register_jitable(_merge_nothing)})
merge_own_hidden = picked_by_type(
    {Private: register_jitable(_merge_hidden), NoCopies: register_jitable(_merge_nothing)}
)


@compiled
def merge_all(arrays: Any, private: Private) -> None:
    """Merge all copies, whether they are due or not."""
    table, num_hot, row = arrays.numbers, private.num_hot, private.num_rows[0]
    merge(arrays.bias_groups, table, arrays.bias, private, num_hot, 1, (row - 1) % FIRST_MERGE + 1)
    start, stop, period = 0, min(FIRST_MERGE, num_hot), FIRST_MERGE
    while start < num_hot:
        merge(arrays.groups, table, start, private, start, stop - start, (row - 1) % period + 1)
        start, stop, period = stop, min(stop * MERGE_GROWTH, num_hot), period * MERGE_GROWTH


@compiled
def mean_products(offsets: NDArray[np.int64], keys: Keys, values: Floats, out: Floats) -> None:
    """How strongly each of the hottest keys, and the bias, moves together with all others of its rows, into `out`.

    That is the mean over rows of |x| times the sum of all |x| of the row; the bias, the last, counts as 1.
    """
    hot, num_rows = np.uint64(out.size - 1), offsets.size - 1
    out[:] = 0
    for row in range(num_rows):
        first, last = np.uint64(offsets[row]), np.uint64(offsets[row + 1])
        total = np.float32(1)
        for k in range(first, last):
            total += abs(values[k])
        out[hot] += total
        for k in range(first, last):
            key = np.uint64(keys[k])
            if key < hot:
                out[key] += abs(values[k]) * total
    for i in range(out.size):
        out[i] /= np.float32(num_rows)
