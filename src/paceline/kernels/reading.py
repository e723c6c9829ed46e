"""How do rows of blocks reach a worker's buffers, one after the other?

`read_rows` copies chosen rows of one block. `read_slice` is for loops that train on many batches in one call: it finds
rows by their positions in the epoch, in a table of addresses [blocks, 9] that says where the arrays of each block lie.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, overload, register_jitable
from numpy.typing import NDArray

from paceline.kernels.jit import STRICT, address_of, compiled
from paceline.kernels.keys import Keys
from paceline.kernels.optional import is_missing, move

# The columns of a table of addresses: the positions that a block covers, the order of its rows, and their arrays.
START, STOP, ORDER, OFFSETS, KEYS, VALUES, LABELS, WEIGHTS, FIELDS = range(9)


class RowSlice(NamedTuple):
    """Where rows are copied to, in compressed sparse form; `nonzeros[0]` is how many a slice had that did not fit.

    `weights` and `fields` are None if the rows have none.
    """

    offsets: NDArray[np.int64]
    keys: Keys
    values: NDArray[np.float32]
    labels: NDArray[Any]
    nonzeros: NDArray[np.int64]
    weights: Any = None
    fields: Any = None


def addresses(blocks: Iterable[tuple[int, NDArray[np.int32], Any]]) -> NDArray[np.int64]:
    """The table of blocks that follow each other: the position of the first row, the order of rows, and the rows.

    The caller must keep the arrays for as long as the table is in use.
    """
    table = []
    for start, order, rows in blocks:
        arrays = order, rows.offsets, rows.keys, rows.values, rows.labels, rows.weights, rows.fields
        table.append((start, start + len(order), *(0 if array is None else array.ctypes.data for array in arrays)))
    return np.array(table, np.int64).reshape(-1, 9)


def _number_at(kind: Any) -> Any:
    """An intrinsic that reads number `index` of an array of this type at an address."""

    @intrinsic
    def read(_context: Any, address: Any, index: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], context.get_value_type(kind).as_pointer())
            return builder.load(builder.gep(pointer, [args[1]]))

        return kind(types.int64, types.int64), codegen

    return read


row_at, offset_at = _number_at(types.int32), _number_at(types.int64)


@intrinsic
def copy_from(_context: Any, out: Any, to: Any, address: Any, first: Any, count: Any) -> Any:
    """`out[to : to + count]` = numbers `first` to `first + count` of the array of the same type at an address."""
    signature = types.void(out, types.int64, types.int64, types.int64, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        size = context.get_abi_sizeof(context.get_data_type(signature.args[0].dtype))
        width = ir.IntType(64)(size)
        target = builder.bitcast(address_of(context, builder, signature, args), cgutils.voidptr_t)
        source = builder.inttoptr(builder.add(args[2], builder.mul(args[3], width)), cgutils.voidptr_t)
        cgutils.raw_memcpy(builder, target, source, args[4], width)
        return context.get_dummy_value()

    return signature, codegen


def copy_present(out: Any, to: Any, address: Any, first: Any, count: Any) -> None:
    """`copy_from`, if there is such an array. For compiled loops."""
    raise NotImplementedError


@overload(copy_present, jit_options=STRICT)
def _compile_copy_present(out, to, address, first, count):  # type: ignore[no-untyped-def]
    if is_missing(out):
        return lambda out, to, address, first, count: None
    return lambda out, to, address, first, count: copy_from(out, to, address, first, count)


@compiled
def fill_runs(runs: NDArray[np.int64], run_rows: int, out: NDArray[np.int32]) -> None:
    """Row numbers: those of run `runs[0]`, of `runs[1]`, and so on. The run that holds the last row may be short."""
    at = 0
    for i in range(runs.size):
        first = runs[i] * run_rows
        for row in range(first, min(first + run_rows, out.size)):
            out[at] = row
            at += 1


@compiled
def count_nonzeros(offsets: NDArray[np.int64], rows: NDArray[np.int32]) -> int:
    """The number of keys in the chosen rows of a block."""
    total = 0
    for i in range(rows.size):
        total += offsets[rows[i] + 1] - offsets[rows[i]]
    return total


@compiled
def read_rows(offsets: NDArray[np.int64], keys: Keys, values: NDArray[np.float32], labels: NDArray[Any], weights: Any,
              fields: Any, rows: NDArray[np.int32], out_offsets: NDArray[np.int64], out_keys: Keys,
              out_values: NDArray[np.float32], out_labels: NDArray[Any], out_weights: Any, out_fields: Any,
              filled: int) -> None:  # fmt: skip
    """Copy `rows` of a block after the first `filled` rows of the buffers, which have room for them."""
    # Unsigned numbers throughout: an index that cannot be negative needs no check, and the copies become vectors.
    at = np.uint64(out_offsets[filled])
    for i in range(rows.size):
        row = np.uint64(rows[i])
        out_labels[filled + i] = labels[row]
        move(out_weights, filled + i, weights, row)
        start = np.uint64(offsets[row])
        count = np.uint64(offsets[row + np.uint64(1)]) - start
        for k in range(count):
            out_keys[at + k] = keys[start + k]
        for k in range(count):
            out_values[at + k] = values[start + k]
        for k in range(count):
            move(out_fields, at + k, fields, start + k)
        at += count
        out_offsets[filled + i + 1] = at


@compiled
def count_slice(blocks: NDArray[np.int64], start: int, stop: int) -> int:
    """The number of keys in the rows at positions `start` up to `stop`."""
    total, number = 0, 0
    while start < stop:
        while blocks[number, STOP] <= start:
            number += 1
        order, offsets = blocks[number, ORDER], blocks[number, OFFSETS]
        until = min(stop, blocks[number, STOP])
        for i in range(start - blocks[number, START], until - blocks[number, START]):
            row = np.int64(row_at(order, i))
            total += offset_at(offsets, row + 1) - offset_at(offsets, row)
        start = until
    return total


@compiled
def read_slice(blocks: NDArray[np.int64], start: int, stop: int, out: Any) -> bool:
    """Copy the rows at positions `start` up to `stop`; whether there was room for their keys."""
    nonzeros = count_slice(blocks, start, stop)
    if nonzeros > out.keys.size:
        out.nonzeros[0] = nonzeros
        return False
    filled, at, number = 0, 0, 0
    out.offsets[0] = 0
    while start < stop:
        while blocks[number, STOP] <= start:
            number += 1
        order, offsets = blocks[number, ORDER], blocks[number, OFFSETS]
        first, until = blocks[number, START], min(stop, blocks[number, STOP])
        while start < until:
            # Most rows follow each other in the block as well, and are copied together.
            row = np.int64(row_at(order, start - first))
            count = 1
            while start + count < until and np.int64(row_at(order, start - first + count)) == row + count:
                count += 1
            begin, end = offset_at(offsets, row), offset_at(offsets, row + count)
            for i in range(1, count + 1):
                out.offsets[filled + i] = at + (offset_at(offsets, row + i) - begin)
            copy_from(out.keys, at, blocks[number, KEYS], begin, end - begin)
            copy_from(out.values, at, blocks[number, VALUES], begin, end - begin)
            copy_from(out.labels, filled, blocks[number, LABELS], row, count)
            copy_present(out.weights, filled, blocks[number, WEIGHTS], row, count)
            copy_present(out.fields, at, blocks[number, FIELDS], begin, end - begin)
            at += end - begin
            filled += count
            start += count
    return True


@register_jitable
def slice_of(clocks: Any, clock: Any, rank: int) -> tuple[Any, Any]:
    """The positions that a rank takes in one of the `clocks`, counted from 0. In Python, `clock` may be many."""
    start = clocks.start + clock * clocks.clock_rows
    rows = np.minimum(clocks.clock_rows, clocks.stop - start)
    return start + rank * rows // clocks.workers, start + (rank + 1) * rows // clocks.workers
