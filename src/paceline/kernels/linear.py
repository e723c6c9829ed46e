"""The loops of linear models over sparse rows: z = w·x + b, under any loss.

The table has one column, and the bias is its last row. `gradient` is one step's computation, for batches. `train_rows`
does whole steps of one row each, without numbering keys, for as many rows as it is given.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.gate import UNBOUNDED, passes, read_clock, set_clock, slowest
from paceline.kernels.jit import compiled, never_inlined, prefetch, prefetch_to_read, reassociated
from paceline.kernels.keys import Keys
from paceline.kernels.losses import ROWS_PER_LOG, measure
from paceline.kernels.private import FIRST_MERGE, merge_due, row_of
from paceline.kernels.rules import Table, memory, quick_update, quick_weight, weight
from paceline.kernels.steps import gradient_rule

Floats = NDArray[np.float32]
Offsets = NDArray[np.int64]

# How far ahead of its use a row's weights are asked for, and before that the row itself.
ROWS_AHEAD = 8
READ_AHEAD = 2 * ROWS_AHEAD
NONZEROS_PER_LINE = np.uint64(16)
ONE = np.uint64(1)


class Linear(NamedTuple):
    """A linear model, as compiled loops know it."""

    loss: Any


@reassociated
def gradient(model: Any, offsets: Offsets, local: NDArray[np.uint32], values: Floats, labels: NDArray[Any],
             weights: Floats, out: Floats) -> float:  # fmt: skip
    """Sum the rows' gradients into `out` [number], from `weights` [number]; returns the sum of their losses.

    `local` and `values` begin with the first of these rows, wherever its offset says that it lies.
    """
    # The same machine code, and so the same bits, for every caller: a fused loop here, a worker of a cluster there.
    never_inlined()
    begin = np.uint64(offsets[0])
    losses, product = 0.0, 1.0
    for i in range(weights.size):
        out[i] = np.float32(0)
    for row in range(labels.size):
        start, stop = np.uint64(offsets[row]) - begin, np.uint64(offsets[row + 1]) - begin
        z = weights[0]
        for k in range(start, stop):
            z += weights[local[k]] * values[k]
        slope, value, factor = measure(model.loss, z, np.float32(labels[row]))
        product *= factor
        if row % ROWS_PER_LOG == ROWS_PER_LOG - 1:
            losses += np.log(product)
            product = 1.0
        losses += value
        out[0] += slope
        for k in range(start, stop):
            out[local[k]] += slope * values[k]
    return losses + np.log(product)


gradient_rule(Linear, gradient)


@reassociated
def train_rows(
    model: Any, arrays: Any, block: Any, rows: NDArray[np.int32], start: int, private: Any, gate: Any
) -> tuple[int, float]:
    """One update per row, in place, for `rows` of a block in that order, from `rows[start]` on; a clock is one row.

    The hottest `private.num_hot` keys and the bias are read and written in this worker's own rows of the table, and
    merged now and then. Stops when the gate does. Returns the place in `rows` that it reached and the sum of the
    losses. `gate.leads[rank, 0]` keeps the largest lead over the slowest worker.
    """
    rule, bias_rule, table, bias = arrays.groups, arrays.bias_groups, arrays.numbers, arrays.bias
    offsets, keys, values, labels = block.offsets, block.keys, block.values, block.labels
    clocks, rank, leads = gate.clocks, gate.rank, gate.leads
    num_hot, row_count = private.num_hot, private.num_rows[0]
    step = ONE + memory(rule)
    own_bias = np.uint64(bias if num_hot == 0 else private.first + num_hot)
    losses, product = 0.0, 1.0
    clock = read_clock(clocks, rank)
    lead = leads[rank, 0]
    last_seen = slowest(clocks)
    # Reading the clocks of all workers costs as much as a row. At async nothing depends on them, so a sample will do.
    sampled = gate.staleness >= UNBOUNDED
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
            merge_due(arrays, private, FIRST_MERGE)
        row = rows[i]
        first, last = np.uint64(offsets[row]), np.uint64(offsets[row + 1])
        z = quick_weight(bias_rule, table, own_bias * step, ONE)
        for k in range(first, last):
            z += quick_weight(rule, table, row_of(private, np.uint64(keys[k])) * step, ONE) * values[k]
        slope, value, factor = measure(model.loss, z, np.float32(labels[row]))
        product *= factor
        if i % ROWS_PER_LOG == ROWS_PER_LOG - 1:
            losses += np.log(product)
            product = 1.0
        losses += value
        # Here, because the processor has time for it while it waits for the slope.
        if i + ROWS_AHEAD < rows.size:
            ahead = rows[i + ROWS_AHEAD]
            for k in range(np.uint64(offsets[ahead]), np.uint64(offsets[ahead + 1])):
                prefetch(table, row_of(private, np.uint64(keys[k])) * step)
        if i + READ_AHEAD < rows.size:
            ahead = rows[i + READ_AHEAD]
            for k in range(np.uint64(offsets[ahead]), np.uint64(offsets[ahead + 1]), NONZEROS_PER_LINE):
                prefetch_to_read(keys, k)
                prefetch_to_read(values, k)
        quick_update(bias_rule, table, own_bias * step, ONE, slope)
        for k in range(first, last):
            at = row_of(private, np.uint64(keys[k])) * step
            quick_update(rule, table, at, ONE, slope * values[k])
        i += 1
        row_count += 1
        clock += 1
        set_clock(clocks, rank, clock)
    leads[rank, 0] = lead
    private.num_rows[0] = row_count
    return i, losses + np.log(product)


@reassociated
def score(rule: Any, bias_rule: Any, table: Table, bias: int, num_keys: int, offsets: Offsets, keys: Keys,
          values: Floats, out: Floats) -> None:  # fmt: skip
    """The scores w·x + b of rows into `out` [rows]; keys from `num_keys` on are unknown and count nothing."""
    step = ONE + memory(rule)
    known = np.uint64(num_keys)
    for row in range(out.size):
        if row + ROWS_AHEAD < out.size:
            for k in range(np.uint64(offsets[row + ROWS_AHEAD]), np.uint64(offsets[row + ROWS_AHEAD + 1])):
                if np.uint64(keys[k]) < known:
                    prefetch(table, np.uint64(keys[k]) * step)
        z = weight(bias_rule, table, np.uint64(bias) * step, ONE)
        for k in range(np.uint64(offsets[row]), np.uint64(offsets[row + 1])):
            key = np.uint64(keys[k])
            if key < known:
                z += weight(rule, table, key * step, ONE) * values[k]
        out[row] = z


@compiled
def count_above(negatives: Floats, positives: Floats) -> float:
    """Pairs in which the positive's score is the higher one, ties counting a half; both arrays are sorted."""
    below, ties, pairs = 0, 0, 0.0
    for i in range(positives.size):
        score = positives[i]
        while below < negatives.size and negatives[below] < score:
            below += 1
        if i == 0 or positives[i - 1] != score:
            ties = 0
            while below + ties < negatives.size and negatives[below + ties] == score:
                ties += 1
        pairs += below + 0.5 * ties
    return pairs
