"""What can be done to a table of parameters by key, whatever its columns and optimizers?

A table is flat float32. The row of a key is `row_width(groups)` numbers: group by group the values of the group's
columns, then what its optimizer remembers of them. A *group* is a rule and a number of columns, and a table has
a tuple of groups. A table of one column is given by its rule alone: that spares a microsecond per call, and its loops
compile as if there were no columns.

The last row may be the bias, which every batch has and which is never regularised: it has rules of its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload
from numpy.typing import NDArray

from paceline.kernels.hashing import mix
from paceline.kernels.jit import STRICT, compiled, prefetch
from paceline.kernels.keys import GOLDEN, Keys
from paceline.kernels.rules import Table, group_memory, is_rule_type, is_shared_type, memory, step_size, update, weight
from paceline.kernels.vectors import Lanes, Vectors, load, store

Floats = NDArray[np.float32]

KEYS_AHEAD = 32
FLOATS_PER_LINE = 16
ONE = np.uint64(1)
TWO_PI = 2 * np.pi


class KeysOfRows(NamedTuple):
    """Which key of the input each row of a table is for: row i for key `first + i * step`, but row `rows[j]`, which
    ascend, for key `keys[j]`.
    """

    first: int
    step: int
    rows: NDArray[np.int64]
    keys: NDArray[np.uint64]


class Single(NamedTuple):
    """One column."""


class Several(NamedTuple):
    """Any number of columns."""

    count: int


class Together(NamedTuple):
    """Columns in some blocks that are read and updated as one vector each. The compiler knows how long a block is."""

    lanes: Lanes
    blocks: int


class ColumnGroup(NamedTuple):
    """Columns of a table that one rule updates."""

    rule: Any
    columns: Single | Several | Together


class TableArrays(NamedTuple):
    """A table as the loops of whole steps take it: its groups, those of the bias, its numbers, and the bias's key."""

    groups: Any
    bias_groups: Any
    numbers: Table
    bias: int


def columns(given: Any) -> Any:
    """How many columns there are."""
    if isinstance(given, Together):
        return len(given.lanes) * given.blocks
    return given.count if isinstance(given, Several) else 1


def group_width(group: Any) -> Any:
    """The numbers of a group in a row."""
    blocks = group.columns.blocks if isinstance(group.columns, Together) else 1
    count = columns(group.columns)
    return count + group_memory(group.rule, count, blocks)


def row_width(groups: Any) -> Any:
    """The numbers of a row."""
    if is_rule_type(type(groups)):
        return 1 + memory(groups)
    return sum(group_width(group) for group in groups)


def row_dim(groups: Any) -> Any:
    """The values of a row."""
    return 1 if is_rule_type(type(groups)) else sum(columns(group.columns) for group in groups)


def vector_stride(rule: Any, lanes: Lanes, first: Any, count: Any) -> Any:
    """The stride of the vector from column `first` on, of `count` columns: from its values to what the optimizer
    remembers of them, which is a number per vector if they share it. For compiled loops.
    """
    raise NotImplementedError


@overload(vector_stride, jit_options=STRICT)
def _compile_vector_stride(rule, lanes, first, count):  # type: ignore[no-untyped-def]
    if not is_shared_type(rule.instance_class):
        return lambda rule, lanes, first, count: count
    length = np.uint64(len(lanes))
    return lambda rule, lanes, first, count: count - first + first // length


def prefetch_row(groups: Any, table: Table, at: Any) -> None:
    """Load the row that begins at `at` into the caches. For compiled loops."""
    raise NotImplementedError


def read_row(groups: Any, table: Table, at: Any, out: Floats, to: Any) -> None:
    """The values of the row that begins at `at` into `out`, from `to` on. For compiled loops."""
    raise NotImplementedError


def update_row(groups: Any, table: Table, at: Any, sums: Floats, given: Any, rows: Any) -> None:
    """Apply the sums from `given` on, divided by `rows`, to the row that begins at `at`. For compiled loops."""
    raise NotImplementedError


def row_step_size(groups: Any, table: Table, at: Any) -> Any:
    """How far the next update moves the first value of a row, per unit of gradient. For compiled loops."""
    raise NotImplementedError


@overload(columns)
def _compile_columns(given):  # type: ignore[no-untyped-def]
    if given.instance_class is Single:
        return lambda given: ONE
    if given.instance_class is Together:
        count = np.uint64(len(given.types[0]))
        return lambda given: count * np.uint64(given.blocks)
    return lambda given: np.uint64(given.count)


@overload(group_width, jit_options=STRICT)
def _compile_group_width(group):  # type: ignore[no-untyped-def]
    def width_of_vectors(group):  # type: ignore[no-untyped-def]
        count = columns(group.columns)
        return count + group_memory(group.rule, count, group.columns.blocks)

    def width(group):  # type: ignore[no-untyped-def]
        count = columns(group.columns)
        return count + group_memory(group.rule, count, ONE)

    return width_of_vectors if _is_together(group) else width


# Groups have several types, so loops over them are unrolled: each of these calls itself for the rest of the groups.
@overload(row_width, jit_options=STRICT)
def _compile_row_width(groups):  # type: ignore[no-untyped-def]
    if _is_compiled_rule(groups):
        return lambda groups: ONE + memory(groups)
    if not len(groups):
        return lambda groups: np.uint64(0)
    return lambda groups: group_width(groups[0]) + row_width(groups[1:])


@overload(row_dim, jit_options=STRICT)
def _compile_row_dim(groups):  # type: ignore[no-untyped-def]
    if _is_compiled_rule(groups):
        return lambda groups: ONE
    if not len(groups):
        return lambda groups: np.uint64(0)
    return lambda groups: columns(groups[0].columns) + row_dim(groups[1:])


@overload(prefetch_row, jit_options=STRICT)
def _compile_prefetch_row(groups, table, at):  # type: ignore[no-untyped-def]
    if _is_compiled_rule(groups):
        # Not the loop below, even if it has one turn: it would cost a third of the time of small updates.
        return lambda groups, table, at: prefetch(table, at)

    def load(groups, table, at):  # type: ignore[no-untyped-def]
        for line in range(np.uint64(0), row_width(groups), np.uint64(FLOATS_PER_LINE)):
            prefetch(table, at + line)

    return load


@overload(read_row, jit_options=STRICT)
def _compile_read_row(groups, table, at, out, to):  # type: ignore[no-untyped-def]
    if _is_compiled_rule(groups):

        def read_one(groups, table, at, out, to):  # type: ignore[no-untyped-def]
            out[to] = weight(groups, table, at, ONE)

        return read_one
    if not len(groups):
        return lambda groups, table, at, out, to: None

    def read_together(groups, table, at, out, to):  # type: ignore[no-untyped-def]
        rule, lanes = groups[0].rule, groups[0].columns.lanes
        count, length = columns(groups[0].columns), np.uint64(len(lanes))
        for first in range(np.uint64(0), count, length):
            store(out, to + first, weight(rule, Vectors(table, lanes), at + first, count))
        read_row(groups[1:], table, at + group_width(groups[0]), out, to + count)

    def read(groups, table, at, out, to):  # type: ignore[no-untyped-def]
        rule = groups[0].rule
        count = columns(groups[0].columns)
        for column in range(count):
            out[to + column] = weight(rule, table, at + column, count)
        read_row(groups[1:], table, at + group_width(groups[0]), out, to + count)

    return read_together if _is_together(groups[0]) else read


@overload(update_row, jit_options=STRICT)
def _compile_update_row(groups, table, at, sums, given, rows):  # type: ignore[no-untyped-def]
    if _is_compiled_rule(groups):

        def update_one(groups, table, at, sums, given, rows):  # type: ignore[no-untyped-def]
            update(groups, table, at, ONE, sums[given] / rows)

        return update_one
    if not len(groups):
        return lambda groups, table, at, sums, given, rows: None

    def change_together(groups, table, at, sums, given, rows):  # type: ignore[no-untyped-def]
        rule, lanes = groups[0].rule, groups[0].columns.lanes
        count, length = columns(groups[0].columns), np.uint64(len(lanes))
        for first in range(np.uint64(0), count, length):
            stride = vector_stride(rule, lanes, first, count)
            update(rule, Vectors(table, lanes), at + first, stride, load(sums, given + first, lanes) / rows)
        update_row(groups[1:], table, at + group_width(groups[0]), sums, given + count, rows)

    def change(groups, table, at, sums, given, rows):  # type: ignore[no-untyped-def]
        rule = groups[0].rule
        count = columns(groups[0].columns)
        for column in range(count):
            update(rule, table, at + column, count, sums[given + column] / rows)
        update_row(groups[1:], table, at + group_width(groups[0]), sums, given + count, rows)

    return change_together if _is_together(groups[0]) else change


@overload(row_step_size, jit_options=STRICT)
def _compile_row_step_size(groups, table, at):  # type: ignore[no-untyped-def]
    if _is_compiled_rule(groups):
        return lambda groups, table, at: step_size(groups, table, at, ONE)
    return lambda groups, table, at: step_size(groups[0].rule, table, at, columns(groups[0].columns))


def _is_compiled_rule(groups: Any) -> bool:
    return is_rule_type(getattr(groups, "instance_class", None))


def _is_together(group: Any) -> bool:
    """Whether the columns of a group are vectors."""
    return group.types[1].instance_class is Together


@compiled
def gather(groups: Any, bias_groups: Any, table: Table, bias: int, keys: Keys, out: Floats) -> None:
    """The values of `keys` into `out` [keys, dim]."""
    width, dim = row_width(groups), row_dim(groups)
    ahead = np.uint64(KEYS_AHEAD)
    for i in range(np.uint64(keys.size)):
        if i + ahead < np.uint64(keys.size):
            prefetch_row(groups, table, np.uint64(keys[i + ahead]) * width)
        key = np.uint64(keys[i])
        if key == np.uint64(bias):
            read_row(bias_groups, table, key * width, out, i * dim)
        else:
            read_row(groups, table, key * width, out, i * dim)


@compiled
def apply_gradient(
    groups: Any, bias_groups: Any, table: Table, bias: int, keys: Keys, sums: Floats, num_rows: int
) -> None:
    """Update each of the distinct `keys` by the mean of its gradient over the rows."""
    width, dim = row_width(groups), row_dim(groups)
    rows = np.float32(num_rows)
    ahead = np.uint64(KEYS_AHEAD)
    for i in range(np.uint64(keys.size)):
        if i + ahead < np.uint64(keys.size):
            prefetch_row(groups, table, np.uint64(keys[i + ahead]) * width)
        key = np.uint64(keys[i])
        if key == np.uint64(bias):
            update_row(bias_groups, table, key * width, sums, i * dim, rows)
        else:
            update_row(groups, table, key * width, sums, i * dim, rows)


@compiled
def read_all(groups: Any, bias_groups: Any, table: Table, bias: int, out: Floats) -> None:
    """The values of all rows that `out` [rows, dim], flat, has room for."""
    width, dim = row_width(groups), row_dim(groups)
    for key in range(np.uint64(out.size) // dim):
        read_row(groups, table, key * width, out, key * dim)
    if np.uint64(bias) < np.uint64(out.size) // dim:
        read_row(bias_groups, table, np.uint64(bias) * width, out, np.uint64(bias) * dim)


@compiled
def fill_uniform(table: Table, width: int, column: int, count: int, of: KeysOfRows, seed: Any,
                 scale: np.float32) -> None:  # fmt: skip
    """Numbers between -`scale` and `scale` for `count` columns from `column` on of every row.

    What a key gets depends on the input's key, the column and the seed alone. So a table that is divided among shards
    begins with the same values as one that is not, and keys with the same values whatever else is in the data.
    """
    moved = 0
    for row in range(table.size // width):
        key = np.uint64(of.first + row * of.step)
        if moved < of.rows.size and of.rows[moved] == row:
            key = of.keys[moved]
            moved += 1
        state = mix(np.uint64(seed) + key * GOLDEN)
        for i in range(count):
            drawn = mix(state + np.uint64(column + i + 1) * GOLDEN) >> np.uint64(40)
            table[row * width + column + i] = scale * (np.float32(drawn) * np.float32(2.0**-23) - np.float32(1))


@compiled
def fill_normal(table: Table, width: int, column: int, count: int, of: KeysOfRows, seed: Any,
                scale: np.float32) -> None:  # fmt: skip
    """As `fill_uniform`, from a normal distribution with standard deviation `scale` (Box and Muller)."""
    moved = 0
    for row in range(table.size // width):
        key = np.uint64(of.first + row * of.step)
        if moved < of.rows.size and of.rows[moved] == row:
            key = of.keys[moved]
            moved += 1
        state = mix(np.uint64(seed) + key * GOLDEN)
        for i in range(count):
            drawn = mix(state + np.uint64(column + i + 1) * GOLDEN)
            radius = np.sqrt(-2 * np.log((np.float64(drawn >> np.uint64(32)) + 0.5) * 2.0**-32))
            turn = np.cos(TWO_PI * np.float64(drawn & np.uint64(0xFFFFFFFF)) * 2.0**-32)
            table[row * width + column + i] = scale * np.float32(radius * turn)
