"""What is one training step, and how do many of them run in one call?

A step numbers the distinct keys of its rows, gathers their values, computes the gradient (`compute_step`), and applies
it. Where each gradient is applied as it arrives, `train_batches` runs many steps. In sync, `train_clocks` takes the
workers of one thread through many clocks together with the other threads. Both stop when their rows or the gate end.

A clock of sync has three phases: compute the gradients of the thread's own workers once the last update is complete
(`AT_GATE`), wait until all threads have (`HANDED_IN`), and fold: add up, rank by rank, the keys that fall to this
thread's part, and apply their means. Parts divide keys, so the bits do not depend on the number of threads.

The gradient is the model's, picked by the type of the model as optimizers are (`rules.py`): a compiled
`gradient(model, offsets, local, values, labels, weights, out)` that is registered with `gradient_rule`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.fold import add_in
from paceline.kernels.gate import passes, read_clock, set_clock, slowest
from paceline.kernels.jit import compiled, reassociated
from paceline.kernels.keys import Keys
from paceline.kernels.numbering import number_keys
from paceline.kernels.rules import picked_by_type
from paceline.kernels.tables import apply_gradient, gather, row_dim

Floats = NDArray[np.float32]

AT_GATE, HANDED_IN, OUT_OF_ROOM = 0, 1, 2

_GRADIENTS: dict[type, Callable[..., Any]] = {}
# gradient(model, offsets, local, values, labels, weights, out), by the model's own loop
gradient = picked_by_type(_GRADIENTS)


class ClockGate(NamedTuple):
    """What threads in step wait on: all workers' clocks, and how many clocks each thread has handed in."""

    clocks: NDArray[np.int64]
    handed_in: NDArray[np.int64]
    part: int
    spins: int


class GateView(NamedTuple):
    """The gate as one worker's compiled loop sees it."""

    clocks: NDArray[np.int64]
    rank: int
    staleness: int
    spins: int
    leads: NDArray[np.int64]


def gradient_rule(model: type, gradient: Callable[..., Any]) -> None:
    """Let steps use this compiled `gradient` for models of this type."""
    _GRADIENTS[model] = gradient


def gradient_of(model: Any) -> Callable[..., float]:
    """The compiled gradient of a model, for callers in Python."""
    return _GRADIENTS[type(model)]


@compiled
def compute_step(
    model: Any, table: Any, rows: Any, start: int, stop: int, buffers: Any, distinct: Keys, sums: Floats
) -> tuple[int, float]:
    """Number, gather and gradient for rows `start` to `stop`; returns how many distinct keys they have, and their loss.

    Leaves the keys in `distinct` and the sums of their gradients in `sums`.
    """
    first, last = rows.offsets[start], rows.offsets[stop]
    keys = rows.keys[first:last]
    count = number_keys(keys, table.bias, buffers.slots, buffers.direct, buffers.turn, distinct, buffers.local)
    weights = buffers.weights[: np.uint64(count) * row_dim(table.groups)]
    gather(table.groups, table.bias_groups, table.numbers, table.bias, distinct[:count], weights)
    losses = gradient(
        model, rows.offsets[start : stop + 1], buffers.local, rows.values[first:last], rows.labels[start:stop], weights,
        sums,
    )  # fmt: skip
    return count, losses


@reassociated
def train_batches(
    model: Any, table: Any, rows: Any, start: int, batch_size: int, buffers: Any, gate: Any
) -> tuple[int, float]:
    """One update per batch of rows, in place, from row `start` on; a clock is one batch.

    `buffers` are a worker's, with room for the nonzeros of any batch. Stops when the gate does. Returns the row it
    stopped before and the sum of the losses.
    """
    losses = 0.0
    clocks, rank, leads = gate.clocks, gate.rank, gate.leads
    clock = read_clock(clocks, rank)
    row = start
    while row < rows.labels.size:
        if not passes(clocks, clock, gate.staleness, gate.spins, leads, rank):
            break
        leads[rank, 0] = max(leads[rank, 0], clock - slowest(clocks))
        stop = min(row + batch_size, rows.labels.size)
        count, more = compute_step(model, table, rows, row, stop, buffers, buffers.distinct, buffers.sums)
        losses += more
        keys = buffers.distinct[:count]
        apply_gradient(table.groups, table.bias_groups, table.numbers, table.bias, keys, buffers.sums, stop - row)
        row = stop
        clock += 1
        set_clock(clocks, rank, clock)
    return row, losses


@compiled
def train_clocks(model: Any, table: Any, rows: Any, starts: NDArray[np.int64], ranks: NDArray[np.int64], buffers: Any,
                 pushes: Any, fold: Any, gate: Any, done: int, phase: int) -> tuple[int, int, float]:  # fmt: skip
    """Run the workers `ranks` of one thread for the clocks whose rows are given, from clock `done` of them on.

    The rows lie clock by clock, and within a clock rank by rank; `starts` [clocks × ranks + 1] says where each begins.
    Returns how many of these clocks are done, the phase of the next one and the sum of the losses so far. It returns
    early if the thread has spun `gate.spins` times, or if `fold` has no room for the keys that were handed in.
    """
    clocks, handed_in, part, spins = gate.clocks, gate.handed_in, gate.part, gate.spins
    losses = 0.0
    num_clocks = (starts.size - 1) // ranks.size
    while done < num_clocks:
        clock = read_clock(clocks, ranks[0])
        if phase == AT_GATE:
            if not passes(clocks, clock, 0, spins, handed_in, part):
                return done, phase, losses
            for j in range(ranks.size):
                start, stop = starts[done * ranks.size + j], starts[done * ranks.size + j + 1]
                rank = ranks[j]
                count, more = compute_step(
                    model, table, rows, start, stop, buffers, pushes.keys[rank], pushes.sums[rank]
                )
                losses += more
                pushes.counts[rank, 0] = count if stop > start else 0
                pushes.rows[rank, 0] = stop - start
            set_clock(handed_in, part, clock + 1)
            phase = HANDED_IN
        if not passes(handed_in, clock + 1, 0, spins, handed_in, part):
            return done, HANDED_IN, losses
        num_keys, num_rows = 0, 0
        for rank in range(pushes.counts.shape[0]):
            num_keys += pushes.counts[rank, 0]
            num_rows += pushes.rows[rank, 0]
        if num_keys > fold.distinct.size:
            return done, OUT_OF_ROOM, losses
        fold_part(table, pushes, fold, part, handed_in.shape[0], num_rows)
        for j in range(ranks.size):
            set_clock(clocks, ranks[j], clock + 1)
        done += 1
        phase = AT_GATE
    return done, phase, losses


@compiled
def fold_part(table: Any, pushes: Any, fold: Any, part: int, parts: int, num_rows: int) -> None:
    """Apply the mean gradient of this part's keys, out of what all workers pushed."""
    if fold.turn[0] == 255:
        fold.slots[:] = 0
        fold.direct[:] = 0
        fold.turn[0] = 0
    fold.turn[0] += 1
    count = 0
    for rank in range(pushes.counts.shape[0]):
        pushed = pushes.counts[rank, 0]
        count = add_in(
            fold.columns, pushes.keys[rank, :pushed], pushes.sums[rank], part, parts, fold.slots, fold.direct,
            fold.turn[0], fold.own, fold.distinct, fold.totals, count,
        )  # fmt: skip
    keys = fold.distinct[:count]
    apply_gradient(table.groups, table.bias_groups, table.numbers, table.bias, keys, fold.totals, num_rows)
