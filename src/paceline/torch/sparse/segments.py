"""How are the gradients of a batch added up so that the same seed gives the same bits? Key by key, in a fixed order.

The nonzeros of a batch are sorted by key. A program adds up those of one key, in the order in which the rows come, and
the result does not depend on which threads are faster. Nothing is atomic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.data.rows import RUN_ROWS
from paceline.torch.model import torch
from paceline.torch.sparse.rows import GpuRows, RowShape, Runs, num_chunks, rows_of_run
from paceline.torch.sparse.table import GpuTable, NumberedTable
from paceline.torch.sparse.triton_ import tl, triton

# How many nonzeros of a key are added up at once: fewer if each moves several numbers.
NONZEROS_AT_ONCE, FEWEST_AT_ONCE = 512, 64
ROWS = tl.constexpr(RUN_ROWS)


def sums_by_key(
    table: GpuTable | NumberedTable, rows: GpuRows, shape: RowShape, runs: Runs, num_runs: int, moves: Any,
    second: bool, launched: Callable[[], None] = lambda: None,
) -> tuple[Any, Any]:  # fmt: skip
    """The distinct keys of a batch, the bias among them, and the sums of their gradients [keys, dim], flat.

    `moves` [rows, columns] says how a row of the launch moves its keys, times the value of each. With `second`, its
    first column times the square of the value, times each other column of the key itself, is subtracted.
    `launched` is called after each part that the GPU works on by itself.
    """
    count, columns = moves.shape
    lengths = torch.zeros(count, dtype=torch.int64, device=moves.device)
    note_lengths[(num_runs,)](rows, runs, lengths)
    ends = torch.cumsum(lengths, 0)
    launched()
    total = int(ends[-1])
    keys = torch.empty(total + count, dtype=torch.int64, device=moves.device)
    owners = torch.empty(total + count, dtype=torch.int32, device=moves.device)
    values = torch.empty(total + count, device=moves.device)
    list_nonzeros[(num_runs,)](rows, runs, ends, keys, owners, values, shape.ones, shape.listed, shape.one_chunk)
    # Every row has the bias with the value 1.
    keys[total:], values[total:] = table.layout.bias_key, 1.0
    owners[total:] = torch.arange(count, dtype=torch.int32, device=moves.device)
    launched()
    ordered, order = torch.sort(keys, stable=True)
    launched()
    distinct, sizes = torch.unique_consecutive(ordered, return_counts=True)
    ends = torch.cumsum(sizes, 0)
    sums = torch.empty((len(distinct), columns), device=moves.device)
    padded = triton.next_power_of_2(columns)
    add_up[(len(distinct),)](
        ends, sizes, order, owners, values, moves, sums, distinct, table.numbers, table.width,
        table.groups[-1].first, table.layout.bias_key, second, columns, padded,
        max(FEWEST_AT_ONCE, NONZEROS_AT_ONCE // padded),
    )  # fmt: skip
    return distinct, sums.view(-1)


@triton.jit
def note_lengths(rows, runs, lengths):
    """How many nonzeros each row of the launch has."""
    row = tl.arange(0, ROWS)
    start, size, place = rows_of_run(runs, tl.program_id(0))
    found = tl.load(rows.lengths + start + row, row < size, other=0)
    tl.store(lengths + place + row, found.to(tl.int64), row < size)


@triton.jit
def list_nonzeros(rows, runs, ends, keys, owners, values, ONES: tl.constexpr, LISTED: tl.constexpr,
                  ONE_CHUNK: tl.constexpr):  # fmt: skip
    """The nonzeros of the rows of a launch, one row after the other, with the place of the row."""
    row, k = tl.arange(0, ROWS), tl.arange(0, LISTED)
    start, size, place = rows_of_run(runs, tl.program_id(0))
    there, at = row < size, start + row
    first = tl.load(rows.starts + at, there, other=0)
    length = tl.load(rows.lengths + at, there, other=0)
    to = tl.load(ends + place + row, there, other=0) - length
    owner = tl.zeros((ROWS, LISTED), tl.int32) + (place + row)[:, None].to(tl.int32)
    for chunk in range(num_chunks(tl.max(length, 0), LISTED, ONE_CHUNK)):
        number = chunk * LISTED + k[None, :]
        listed = number < length[:, None]
        tl.store(keys + to[:, None] + number, tl.load(rows.keys + first[:, None] + number, listed).to(tl.int64), listed)
        tl.store(owners + to[:, None] + number, owner, listed)
        value = tl.zeros((ROWS, LISTED), tl.float32) + 1.0
        if not ONES:
            value = tl.load(rows.key_values + first[:, None] + number, listed, other=0.0)
        tl.store(values + to[:, None] + number, value, listed)


@triton.jit
def add_up(ends, sizes, order, owners, values, moves, sums, keys, numbers, width, first, bias, SECOND: tl.constexpr,
           COLUMNS: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    """The sum of the gradients of one key."""
    number = tl.program_id(0)
    size = tl.load(sizes + number)
    start = tl.load(ends + number) - size
    t, c = tl.arange(0, TILE), tl.arange(0, PADDED)
    totals = tl.zeros((TILE, PADDED), tl.float32)
    seconds = tl.zeros((TILE,), tl.float32)
    for at in range(0, size, TILE):
        there = at + t < size
        which = tl.load(order + start + at + t, there, other=0)
        value = tl.load(values + which, there, other=0.0)
        owner = tl.load(owners + which, there, other=0).to(tl.int64)
        mask = there[:, None] & (c[None, :] < COLUMNS)
        move = tl.load(moves + owner[:, None] * COLUMNS + c[None, :], mask, other=0.0)
        totals += value[:, None] * move
        if SECOND:
            seconds += value * value * tl.load(moves + owner * COLUMNS, there, other=0.0)
    total = tl.sum(totals, 0)
    if SECOND:
        # Column 0 is the weight, and the others are factors, which the bias has none of.
        key = tl.load(keys + number)
        is_factor = (c > 0) & (c < COLUMNS)
        factors = tl.load(numbers + key * width + first + c - 1, is_factor, other=0.0)
        total = tl.where(c > 0, total - factors * tl.sum(seconds), total)
        total = tl.where(is_factor & (key == bias), 0.0, total)
    tl.store(sums + number.to(tl.int64) * COLUMNS + c, total, c < COLUMNS)
