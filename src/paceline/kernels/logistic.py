"""The loops of sparse logistic regression: one step in parts, the same step fused, and scoring.

Labels are 0 and 1 here, so the derivative of a row's loss by its score z is σ(z) − label, which is y(σ(y z) − 1) for
labels y of −1 and +1. The bias is one more key, `bias`, of every row, with value 1.

A step is `number_keys` → `gather` → `gradient` (together `compute_step`) → `apply_gradient`, with fold.py's `add_in`
before the last where one update takes the gradients of several workers. Where each gradient is applied as it comes,
`train_batches` runs many such steps in one call, and `train_rows` does batches of one row without numbering keys;
both run until their rows or the gate end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.gate import passes, read_clock, set_clock, slowest
from paceline.kernels.jit import compiled, never_inlined, prefetch, reassociated
from paceline.kernels.keys import GOLDEN, Keys
from paceline.kernels.rules import Table, update, weight, width

Floats = NDArray[np.float32]
Offsets = NDArray[np.int64]

ROWS_AHEAD = 8
KEYS_AHEAD = 32
ROWS_A_LOG = 64  # factors below 2 that a double multiplies before one logarithm is taken of them all
FEWEST_SLOTS = 4096
FIRST_MERGE = 64
MERGE_GROWTH = 4


@compiled
def number_keys(keys: Keys, bias: int, slots: Keys, direct: NDArray[np.uint32], turn: NDArray[np.int64],
                distinct: Keys, local: NDArray[np.uint32]) -> int:  # fmt: skip
    """Number the distinct keys of a batch in order of first sight; the bias is always number 0.

    Fills `distinct` [number] and `local` [key → number] and returns how many there are. `slots` is an open-addressing
    table [power of two, 2] of (key, turn | number) and `direct` [keys] the same for the hottest keys, which come
    first. `turn[0]` counts the calls, so that the tables need clearing only when it has come to 255. `turn[1]` is how
    much of `slots` is used: no more than the batches so far had need of, so that it stays in the near caches.
    """
    turn[1] = max(turn[1], min(slots.shape[0], FEWEST_SLOTS))
    while True:
        count = _number_within(keys, bias, slots, direct, turn, distinct, local)
        if count:
            return count
        turn[1] *= 2


@compiled
def _number_within(keys: Keys, bias: int, slots: Keys, direct: NDArray[np.uint32], turn: NDArray[np.int64],
                   distinct: Keys, local: NDArray[np.uint32]) -> int:  # fmt: skip
    """As `number_keys`; 0 where `turn[1]` slots are too few."""
    if turn[0] == 255:
        slots[:] = 0
        direct[:] = 0
        turn[0] = 0
    turn[0] += 1
    number_mask = np.uint64(0xFFFFFF)
    mask = np.uint64(turn[1] - 1)
    # Where more than a third is taken, looking for a place is what takes long.
    room = np.uint64(turn[1] // 8 * 3 if turn[1] < slots.shape[0] else turn[1])
    num_direct = np.uint64(direct.size)
    tag = np.uint64(turn[0]) << np.uint64(24)
    distinct[0] = bias
    count, taken = np.uint64(1), np.uint64(0)
    # Whether a key is new is a coin toss that no processor predicts: everything is written as if it were, always.
    for k in range(np.uint64(keys.size)):
        key = np.uint64(keys[k])
        if key < num_direct:
            entry = np.uint64(direct[key])
            new = entry & ~number_mask != tag
            number = count if new else entry & number_mask
            direct[key] = tag | number
        else:
            slot = ((key * GOLDEN) >> np.uint64(32)) & mask
            while True:
                entry = np.uint64(slots[slot, 1])
                new = entry & ~number_mask != tag
                if new or np.uint64(slots[slot, 0]) == key:
                    break
                slot = (slot + np.uint64(1)) & mask
            number = count if new else entry & number_mask
            slots[slot, 0] = key
            slots[slot, 1] = tag | number
            taken += np.uint64(new)
            if taken > room:
                return 0
        # No further than the nonzeros go: there is room.
        distinct[count] = key
        local[k] = number
        count += np.uint64(new)
    return np.int64(count)


@compiled
def gather(rule: Any, bias_rule: Any, table: Table, bias: int, keys: Keys, out: Floats) -> None:
    """The weights of `keys` into `out`."""
    step = width(rule)
    ahead = np.uint64(KEYS_AHEAD)
    for i in range(np.uint64(keys.size)):
        if i + ahead < np.uint64(keys.size):
            prefetch(table, np.uint64(keys[i + ahead]) * step)
        key = np.uint64(keys[i])
        out[i] = weight(bias_rule, table, key) if key == np.uint64(bias) else weight(rule, table, key)


@reassociated
def gradient(
    offsets: Offsets, local: NDArray[np.uint32], values: Floats, labels: NDArray[np.uint8], weights: Floats, out: Floats
) -> float:
    """Sum the rows' gradients into `out` [number], from `weights` [number]; returns the sum of their losses.

    `local` and `values` begin with the first of these rows, wherever its offset says that it lies.
    """
    # The same machine code, and so the same bits, whoever calls: a fused loop here, a worker of a cluster there.
    never_inlined()
    one = np.float32(1)
    begin = np.uint64(offsets[0])
    losses, product = 0.0, 1.0
    for i in range(weights.size):
        out[i] = np.float32(0)
    for row in range(labels.size):
        start, stop = np.uint64(offsets[row]) - begin, np.uint64(offsets[row + 1]) - begin
        z = weights[0]
        for k in range(start, stop):
            z += weights[local[k]] * values[k]
        label = np.float32(labels[row])
        shrunk = np.exp(-abs(z))
        share = one / (one + shrunk) if z >= 0 else shrunk / (one + shrunk)
        product *= one + shrunk
        if row % ROWS_A_LOG == ROWS_A_LOG - 1:
            losses += np.log(product)
            product = 1.0
        losses += max(z, np.float32(0)) - z * label
        slope = share - label
        out[0] += slope
        for k in range(start, stop):
            out[local[k]] += slope * values[k]
    return losses + np.log(product)


@compiled
def compute_step(rule: Any, bias_rule: Any, table: Table, bias: int, offsets: Offsets, keys: Keys, values: Floats,
                 labels: NDArray[np.uint8], buffers: Any, distinct: Keys, sums: Floats
                 ) -> tuple[int, float]:  # fmt: skip
    """Number, gather and gradient for one batch; returns how many distinct keys it has and the sum of its losses.

    Leaves the keys in `distinct` and the sums of their gradients in `sums`.
    """
    first, last = offsets[0], offsets[labels.size]
    count = number_keys(keys[first:last], bias, buffers.slots, buffers.direct, buffers.turn, distinct, buffers.local)
    weights = buffers.weights[:count]
    gather(rule, bias_rule, table, bias, distinct[:count], weights)
    return count, gradient(offsets, buffers.local, values[first:last], labels, weights, sums)


@compiled
def apply_gradient(rule: Any, bias_rule: Any, table: Table, bias: int, keys: Keys, sums: Floats, num_rows: int) -> None:
    """Update each of the distinct `keys` by the mean of its gradient over the rows."""
    step = width(rule)
    rows = np.float32(num_rows)
    ahead = np.uint64(KEYS_AHEAD)
    for i in range(np.uint64(keys.size)):
        if i + ahead < np.uint64(keys.size):
            prefetch(table, np.uint64(keys[i + ahead]) * step)
        key = np.uint64(keys[i])
        if key == np.uint64(bias):
            update(bias_rule, table, key, sums[i] / rows)
        else:
            update(rule, table, key, sums[i] / rows)


@reassociated
def merge_private(table: Table, shared: int, private: int, base: Floats, at: int, count: int) -> None:
    """Add what a worker's private copy of `count` numbers has changed to the shared ones, and take those over.

    `base` holds the shared numbers as the worker last took them over; it and the copy are kept at `at` onwards.
    """
    for i in range(count):
        merged = table[shared + i] + (table[private + i] - base[at + i])
        table[shared + i] = merged
        table[private + i] = merged
        base[at + i] = merged


@compiled
def merge_due(table: Table, bias: int, private: int, base: Floats, num_hot: int, step: int, row: int) -> None:
    """Merge the private hot keys that are due at this row: the hottest most often, rank r about every 4 r rows.

    Keys are ranked by how often they occur, about as 1 / r, so each key is merged after about as many changes.
    """
    merge_private(table, bias * step, (private + num_hot) * step, base, num_hot * step, step)
    start, stop, period = 0, min(FIRST_MERGE, num_hot), FIRST_MERGE
    while start < num_hot and row % period == 0:
        merge_private(table, start * step, (private + start) * step, base, start * step, (stop - start) * step)
        start, stop, period = stop, min(stop * MERGE_GROWTH, num_hot), period * MERGE_GROWTH


@reassociated
def train_rows(rule: Any, bias_rule: Any, table: Table, bias: int, offsets: Offsets, keys: Keys, values: Floats,
               labels: NDArray[np.uint8], rows: NDArray[np.int32], start: int, private: int, base: Floats, num_hot: int,
               row_count: int, clocks: NDArray[np.int64], rank: int, staleness: int, spins: int,
               seen: NDArray[np.int64]) -> tuple[int, float]:  # fmt: skip
    """One update a row, in place, for `rows` of a block in that order, from `rows[start]` on; a clock is one row.

    The hottest `num_hot` keys, and the bias behind them, are read and written in this worker's own part of the table,
    from key `private` on, and merged as `row_count`, its rows so far, says. Stops where the gate does. Returns the
    place in `rows` that it came to and the sum of the losses. `seen[rank, 0]` keeps the largest lead over the slowest.
    """
    one = np.float32(1)
    step = width(rule)
    hot = np.uint64(num_hot)
    shift = np.uint64(private)
    own_bias = np.uint64(bias) if num_hot == 0 else np.uint64(private + num_hot)
    losses, product = 0.0, 1.0
    clock = read_clock(clocks, rank)
    lead = seen[rank, 0]
    last_seen = slowest(clocks)
    i = start
    while i < rows.size:
        # The slowest clock is read anew only where the old reading would close the gate or set a record.
        if clock - last_seen > lead:
            if not passes(clocks, clock, staleness, spins, seen, rank):
                break
            last_seen = slowest(clocks)
            lead = max(lead, clock - last_seen)
        if num_hot != 0 and row_count % FIRST_MERGE == 0:
            merge_due(table, bias, private, base, num_hot, np.int64(step), row_count)
        if i + ROWS_AHEAD < rows.size:
            ahead = rows[i + ROWS_AHEAD]
            for k in range(np.uint64(offsets[ahead]), np.uint64(offsets[ahead + 1])):
                key = np.uint64(keys[k])
                prefetch(table, (key + shift if key < hot else key) * step)
        row = rows[i]
        first, last = np.uint64(offsets[row]), np.uint64(offsets[row + 1])
        z = weight(bias_rule, table, own_bias)
        for k in range(first, last):
            key = np.uint64(keys[k])
            z += weight(rule, table, key + shift if key < hot else key) * values[k]
        label = np.float32(labels[row])
        shrunk = np.exp(-abs(z))
        share = one / (one + shrunk) if z >= 0 else shrunk / (one + shrunk)
        product *= one + shrunk
        if i % ROWS_A_LOG == ROWS_A_LOG - 1:
            losses += np.log(product)
            product = 1.0
        losses += max(z, np.float32(0)) - z * label
        slope = share - label
        update(bias_rule, table, own_bias, slope)
        for k in range(first, last):
            key = np.uint64(keys[k])
            update(rule, table, key + shift if key < hot else key, slope * values[k])
        i += 1
        row_count += 1
        clock += 1
        set_clock(clocks, rank, clock)
    seen[rank, 0] = lead
    return i, losses + np.log(product)


@reassociated
def train_batches(rule: Any, bias_rule: Any, table: Table, bias: int, offsets: Offsets, keys: Keys, values: Floats,
                  labels: NDArray[np.uint8], start: int, batch_size: int, buffers: Any,
                  clocks: NDArray[np.int64], rank: int, staleness: int, spins: int,
                  seen: NDArray[np.int64]) -> tuple[int, float]:  # fmt: skip
    """One update a batch of rows, in place, from row `start` on; a clock is one batch.

    `buffers` are a worker's, as `number_keys` and `gradient` take them, with room for the nonzeros of any batch.
    Stops where the gate does. Returns the row it stopped before and the sum of the losses.
    """
    losses = 0.0
    clock = read_clock(clocks, rank)
    row = start
    while row < labels.size:
        if not passes(clocks, clock, staleness, spins, seen, rank):
            break
        seen[rank, 0] = max(seen[rank, 0], clock - slowest(clocks))
        stop = min(row + batch_size, labels.size)
        count, more = compute_step(
            rule, bias_rule, table, bias, offsets[row : stop + 1], keys, values, labels[row:stop], buffers,
            buffers.distinct, buffers.sums,
        )  # fmt: skip
        losses += more
        apply_gradient(rule, bias_rule, table, bias, buffers.distinct[:count], buffers.sums, stop - row)
        row = stop
        clock += 1
        set_clock(clocks, rank, clock)
    return row, losses


@reassociated
def score(rule: Any, bias_rule: Any, table: Table, bias: int, num_keys: int, offsets: Offsets, keys: Keys,
          values: Floats, out: Floats) -> None:  # fmt: skip
    """The scores w·x + b of rows into `out` [rows]; keys from `num_keys` on are unknown and count nothing."""
    step = width(rule)
    known = np.uint64(num_keys)
    for row in range(out.size):
        if row + ROWS_AHEAD < out.size:
            for k in range(np.uint64(offsets[row + ROWS_AHEAD]), np.uint64(offsets[row + ROWS_AHEAD + 1])):
                if np.uint64(keys[k]) < known:
                    prefetch(table, np.uint64(keys[k]) * step)
        z = weight(bias_rule, table, np.uint64(bias))
        for k in range(np.uint64(offsets[row]), np.uint64(offsets[row + 1])):
            key = np.uint64(keys[k])
            if key < known:
                z += weight(rule, table, key) * values[k]
        out[row] = z


@compiled
def all_weights(rule: Any, bias_rule: Any, table: Table, bias: int, out: Floats) -> None:
    """The weights of all keys that `out` has room for."""
    for key in range(np.uint64(out.size)):
        out[key] = weight(rule, table, key)
    if bias < out.size:
        out[bias] = weight(bias_rule, table, np.uint64(bias))


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
