"""What is one training step, and how do many of them run in one call?

A step numbers the distinct keys of its rows, gathers their values, computes the gradient (`compute_step`), and applies
it. Where each gradient is applied as it arrives, `train_batches` runs many steps. In sync, `train_clocks` takes the
workers of one thread through many clocks together with the other threads. Both stop when their rows or the gate end.

A clock of sync has three phases: compute the gradients of the thread's own workers once the last update is complete
(`AT_GATE`), wait until all threads have (`HANDED_IN`), and fold: add up, rank by rank, the keys that fall to this
thread's part, and apply their means. Parts divide keys, so the bits do not depend on the number of threads.

The gradient is the model's, picked by the type of the model as optimizers are (`rules.py`): a compiled
`gradient(model, offsets, local, values, labels, row_weights, fields, weights, out)` that is registered with
`gradient_rule`. Rows may have weights, and nonzeros fields; None stands for those they do not have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.fold import add_in, deal_out
from paceline.kernels.gate import READ, passes, read_clock, set_clock, slowest
from paceline.kernels.jit import compiled, nanoseconds, reassociated
from paceline.kernels.numbering import number_keys
from paceline.kernels.private import FIRST_MERGE, HIDDEN, merge_own_due, merge_own_hidden, replace_keys
from paceline.kernels.reading import read_slice, slice_of
from paceline.kernels.rules import picked_by_type
from paceline.kernels.tables import TableArrays, apply_gradient, gather, row_dim

Floats = NDArray[np.float32]

AT_GATE, HANDED_IN, OUT_OF_ROOM = 0, 1, 2

_GRADIENTS: dict[type, Callable[..., Any]] = {}
# gradient(model, offsets, local, values, labels, row_weights, fields, weights, out), by the model's own loop
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
    model: Any, table: Any, rows: Any, num_rows: int, buffers: Any, num_hot: int, own: int
) -> tuple[int, float]:
    """Number, gather and gradient for the first `num_rows` of `rows`; returns how many distinct keys they have, and
    their loss.

    Leaves the keys in `buffers.distinct`, and the sums of their gradients in `buffers.sums`. In the place of the first
    `num_hot` keys of the table it uses rows `own` and those that follow.
    """
    last = rows.offsets[num_rows]
    keys, distinct = rows.keys[:last], buffers.distinct
    count = number_keys(keys, table.bias, buffers.slots, buffers.direct, buffers.turn, distinct, buffers.local)
    if num_hot > 0:
        replace_keys(distinct[:count], num_hot, own)
    weights = buffers.weights[: np.uint64(count) * row_dim(table.groups)]
    gather(table.groups, table.bias_groups, table.numbers, table.bias, distinct[:count], weights)
    losses = gradient(
        model, rows.offsets[: num_rows + 1], buffers.local, rows.values[:last], rows.labels[:num_rows], rows.weights,
        rows.fields, weights, buffers.sums,
    )  # fmt: skip
    return count, losses


@reassociated
def train_batches(
    model: Any, table: Any, blocks: NDArray[np.int64], start: int, stop: int, rows: Any, buffers: Any, private: Any,
    gate: Any,
) -> tuple[int, float]:  # fmt: skip
    """One update per batch of the rows at positions `start` up to `stop`, in place; a clock is one batch.

    `blocks` says where the rows lie, and `rows` and `buffers` are the worker's own, as are its copies of hot keys, if
    it has any (`private.py`). Stops when the gate does, or at a batch that there is no room for. Returns the position
    it stopped before and the sum of the losses.
    """
    losses = 0.0
    hot = private.num_hot > 0
    bias = private.first + private.num_hot if hot else table.bias
    own = TableArrays(table.groups, table.bias_groups, table.numbers, bias)
    clocks, rank, leads = gate.clocks, gate.rank, gate.leads
    clock = read_clock(clocks, rank) + private.num_rows[HIDDEN]
    while start < stop:
        if not passes(clocks, clock, gate.staleness, gate.spins, leads, rank):
            break
        leads[rank, 0] = max(leads[rank, 0], clock - slowest(clocks))
        num_rows = min(private.batch_size, stop - start)
        began = nanoseconds()
        if not read_slice(blocks, start, start + num_rows, rows):
            break
        leads[rank, READ] += nanoseconds() - began
        count, more = compute_step(model, own, rows, num_rows, buffers, private.num_hot, private.first)
        losses += more
        keys = buffers.distinct[:count]
        apply_gradient(own.groups, own.bias_groups, own.numbers, own.bias, keys, buffers.sums, num_rows)
        start += num_rows
        clock += 1
        if private.clocks > 0:
            private.num_rows[HIDDEN] += 1
            if private.num_rows[HIDDEN] < private.clocks:
                continue
            merge_own_hidden(private, table, num_rows)
        elif hot:
            private.num_rows[0] += num_rows
            if private.num_rows[0] // FIRST_MERGE != (private.num_rows[0] - num_rows) // FIRST_MERGE:
                merge_own_due(private, table, num_rows)
        set_clock(clocks, rank, clock)
    return start, losses


@compiled
def train_clocks(model: Any, table: Any, blocks: NDArray[np.int64], given: Any, ranks: NDArray[np.int64], rows: Any,
                 buffers: Any, pushes: Any, fold: Any, gate: Any, done: int,
                 phase: int) -> tuple[int, int, float]:  # fmt: skip
    """Run the workers `ranks` of one thread for the clocks `given`, from clock `done` of them on.

    `blocks` says where the rows lie, and `rows` and `buffers` are the thread's own. Returns how many of these clocks
    are done, the phase of the next one and the sum of the losses so far. It returns early if the thread has spun
    `gate.spins` times, or if there is no room for a slice of rows or for the keys that were handed in.
    """
    clocks, handed_in, part, spins = gate.clocks, gate.handed_in, gate.part, gate.spins
    losses = 0.0
    while done < given.num_clocks:
        clock = read_clock(clocks, ranks[0])
        if phase == AT_GATE:
            if not passes(clocks, clock, 0, spins, handed_in, part):
                return done, phase, losses
            new_losses = 0.0
            for j in range(ranks.size):
                rank = ranks[j]
                start, stop = slice_of(given, done, rank)
                began = nanoseconds()
                if not read_slice(blocks, start, stop, rows):
                    # All of this clock is computed again: nobody has seen any of it.
                    return done, phase, losses
                handed_in[part, READ] += nanoseconds() - began
                count, more = compute_step(model, table, rows, stop - start, buffers, 0, 0)
                new_losses += more
                keys = buffers.distinct[: count if stop > start else 0]
                deal_out(pushes.columns, keys, buffers.sums, pushes.ends[rank], pushes.keys[rank], pushes.sums[rank])
                pushes.rows[rank, 0] = stop - start
            losses += new_losses
            set_clock(handed_in, part, clock + 1)
            phase = HANDED_IN
        if not passes(handed_in, clock + 1, 0, spins, handed_in, part):
            return done, HANDED_IN, losses
        num_keys, num_rows = 0, 0
        for rank in range(pushes.rows.shape[0]):
            num_keys += pushes.ends[rank, part + 1] - pushes.ends[rank, part]
            num_rows += pushes.rows[rank, 0]
        if num_keys > fold.distinct.size:
            return done, OUT_OF_ROOM, losses
        fold_part(table, pushes, fold, part, num_rows)
        for j in range(ranks.size):
            set_clock(clocks, ranks[j], clock + 1)
        done += 1
        phase = AT_GATE
    return done, phase, losses


@compiled
def fold_part(table: Any, pushes: Any, fold: Any, part: int, num_rows: int) -> None:
    """Apply the mean gradient of this part's keys, out of what all workers pushed."""
    if fold.turn[0] == 255:
        fold.slots[:] = 0
        fold.direct[:] = 0
        fold.turn[0] = 0
    fold.turn[0] += 1
    count = 0
    for rank in range(pushes.rows.shape[0]):
        count = add_in(
            fold.columns, pushes.keys[rank], pushes.sums[rank], pushes.ends[rank, part], pushes.ends[rank, part + 1],
            fold.slots, fold.direct, fold.turn[0], fold.distinct, fold.totals, count,
        )  # fmt: skip
    keys = fold.distinct[:count]
    apply_gradient(table.groups, table.bias_groups, table.numbers, table.bias, keys, fold.totals, num_rows)
