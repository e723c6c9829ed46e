"""How do workers take one update per row, whatever the model? The gate, merges and prefetching; a model brings one row.

A step of one row numbers no keys: it reads and writes the table where it lies. `train_rows` does this for as many rows
as it is given. What happens to one of them is the model's part, picked by the type of the model and compiled into the
loop: a function

    train_row(model, arrays, block, rows, i, bias, private)  one update by row `rows[i]`; its loss as value and factor

that is registered with `row_rule`. It reads and writes each key in the row of the table that `names_of` says and the
bias in row `bias`, and calls `fetch_ahead` where the processor has time for it: before it needs the slope.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import overload, register_jitable
from numpy.typing import NDArray

from paceline.kernels.gate import UNBOUNDED, passes, read_clock, set_clock, slowest
from paceline.kernels.jit import REASSOCIATED, prefetch_to_read, reassociated
from paceline.kernels.losses import ROWS_PER_LOG
from paceline.kernels.private import FIRST_MERGE, merge_own_due, name_keys, names_of
from paceline.kernels.rules import copy_of
from paceline.kernels.tables import prefetch_row, row_width

# How far ahead of its use a row's weights are asked for, and before that the row itself.
ROWS_AHEAD = 8
READ_AHEAD = 2 * ROWS_AHEAD
NONZEROS_PER_LINE = np.uint64(16)

_ROWS: dict[type, Callable[..., Any]] = {}


def row_rule(model: type, train_row: Callable[..., Any]) -> None:
    """Let `train_rows` use this function for models of this type. Its parameters are named as those of `train_row`."""
    # Numba compares its parameters with those below, annotations included.
    _ROWS[model] = copy_of(train_row)


def train_row(model: Any, arrays: Any, block: Any, rows: Any, i: Any, bias: Any, private: Any) -> Any:
    """One update by row `rows[i]` of a block; its loss is the value plus the logarithm of the factor."""
    raise NotImplementedError


@overload(train_row, jit_options={**REASSOCIATED, "forceinline": True})
def _compile_train_row(model, arrays, block, rows, i, bias, private):  # type: ignore[no-untyped-def]
    return _ROWS[model.instance_class]


@register_jitable(forceinline=True, **REASSOCIATED)
def fetch_ahead(arrays: Any, block: Any, rows: NDArray[np.int32], i: int, private: Any) -> None:
    """Ask for the parameters of a row that comes soon, and for a row that comes later."""
    offsets, keys, values = block.offsets, block.keys, block.values
    width = row_width(arrays.groups)
    if i + ROWS_AHEAD < rows.size:
        name_keys(private, block, rows, i + ROWS_AHEAD)
        names, shift = names_of(private, block, rows, i + ROWS_AHEAD)
        ahead = rows[i + ROWS_AHEAD]
        for k in range(np.uint64(offsets[ahead]), np.uint64(offsets[ahead + 1])):
            prefetch_row(arrays.groups, arrays.numbers, np.uint64(names[k + shift]) * width)
    if i + READ_AHEAD < rows.size:
        ahead = rows[i + READ_AHEAD]
        for k in range(np.uint64(offsets[ahead]), np.uint64(offsets[ahead + 1]), NONZEROS_PER_LINE):
            prefetch_to_read(keys, k)
            prefetch_to_read(values, k)


@reassociated
def train_rows(
    model: Any, arrays: Any, block: Any, rows: NDArray[np.int32], start: int, private: Any, gate: Any
) -> tuple[int, float]:
    """One update per row, in place, for `rows` of a block in that order, from `rows[start]` on; a clock is one row.

    The hottest `private.num_hot` keys and the bias are read and written in this worker's own rows of the table, and
    merged now and then. Stops when the gate does. Returns the place in `rows` that it reached and the sum of the
    losses. `gate.leads[rank, 0]` keeps the largest lead over the slowest worker.
    """
    clocks, rank, leads = gate.clocks, gate.rank, gate.leads
    num_hot, row_count = private.num_hot, private.num_rows[0]
    bias = np.uint64(arrays.bias if num_hot == 0 else private.first + num_hot)
    losses, product = 0.0, 1.0
    clock = read_clock(clocks, rank)
    lead = leads[rank, 0]
    last_seen = slowest(clocks)
    # Reading the clocks of all workers costs as much as a row. At async nothing depends on them, so a sample will do.
    sampled = gate.staleness >= UNBOUNDED
    for i in range(start, min(start + ROWS_AHEAD, rows.size)):
        name_keys(private, block, rows, i)
    i = start
    while i < rows.size:
        # The slowest clock is read again only when the old reading would close the gate or set a record.
        if clock - last_seen > lead and (not sampled or row_count % FIRST_MERGE == 0):
            if not passes(clocks, clock, gate.staleness, gate.spins, leads, rank):
                break
            last_seen = slowest(clocks)
            lead = max(lead, clock - last_seen)
        if num_hot != 0 and row_count % FIRST_MERGE == 0:
            private.num_rows[0] = row_count
            merge_own_due(private, arrays, FIRST_MERGE)
        value, factor = train_row(model, arrays, block, rows, i, bias, private)
        product *= factor
        if i % ROWS_PER_LOG == ROWS_PER_LOG - 1:
            losses += np.log(product)
            product = 1.0
        losses += value
        i += 1
        row_count += 1
        clock += 1
        set_clock(clocks, rank, clock)
    leads[rank, 0] = lead
    private.num_rows[0] = row_count
    return i, losses + np.log(product)
