"""How do several threads make one update together, clock after clock, without going back to Python in between?

Each clock has three phases: compute the gradients of the own workers once the last update is complete (`AT_GATE`), wait
until all threads have (`HANDED_IN`), and fold: add up, rank by rank, the keys that fall to the own part, and apply
their means. Parts divide keys, so the result is the same to the bit whatever the number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.fold import add_in
from paceline.kernels.gate import passes, read_clock, set_clock
from paceline.kernels.jit import compiled
from paceline.kernels.keys import Keys
from paceline.kernels.logistic import apply_gradient, compute_step
from paceline.kernels.rules import Table

AT_GATE, HANDED_IN, OUT_OF_ROOM = 0, 1, 2


@compiled
def train_clocks(rule: Any, bias_rule: Any, table: Table, bias: int, offsets: NDArray[np.int64], keys: Keys,
                 values: NDArray[np.float32], labels: NDArray[np.uint8], starts: NDArray[np.int64],
                 ranks: NDArray[np.int64], buffers: Any, pushes: Any, fold: Any, part: int, done: int, phase: int,
                 clocks: NDArray[np.int64], handed_in: NDArray[np.int64], spins: int
                 ) -> tuple[int, int, float]:  # fmt: skip
    """Run the workers `ranks` of one thread for the clocks whose rows are given, from the `done`-th of them on.

    Their rows lie clock by clock, and in a clock rank by rank; `starts` [clocks × ranks + 1] says where each begins.
    Returns how many of these clocks are done, the phase of the next one and the sum of the losses so far: before the
    end where the thread waited for `spins` looks, or where `fold` has no room for the keys that were handed in.
    """
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
                    rule, bias_rule, table, bias, offsets[start : stop + 1], keys, values, labels[start:stop], buffers,
                    pushes.keys[rank], pushes.sums[rank],
                )  # fmt: skip
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
        if num_keys > fold.totals.size:
            return done, OUT_OF_ROOM, losses
        fold_part(rule, bias_rule, table, bias, pushes, fold, part, handed_in.shape[0], num_rows)
        for j in range(ranks.size):
            set_clock(clocks, ranks[j], clock + 1)
        done += 1
        phase = AT_GATE
    return done, phase, losses


@compiled
def fold_part(
    rule: Any, bias_rule: Any, table: Table, bias: int, pushes: Any, fold: Any, part: int, parts: int, num_rows: int
) -> None:
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
            pushes.keys[rank, :pushed], pushes.sums[rank, :pushed], part, parts, fold.slots, fold.direct, fold.turn[0],
            fold.own, fold.distinct, fold.totals, count,
        )  # fmt: skip
    apply_gradient(rule, bias_rule, table, bias, fold.distinct[:count], fold.totals[:count], num_rows)
