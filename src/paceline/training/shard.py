"""Where do the parameters live, and how do gradients reach them?

A shard holds the states of its keys in one flat table, in the blocks' key order, and applies what workers push. In one
process the table is memory that every worker sees: behind the keys it has room for each worker's private copies of
the hottest ones, which the fused loop for single rows uses at pace async.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from paceline.config import OptimizerConfig
from paceline.errors import ConfigError
from paceline.kernels.fold import add_in
from paceline.kernels.gate import LINE
from paceline.kernels.logistic import all_weights, apply_gradient, gather, merge_private
from paceline.optimizers import Rules, rules_at, width
from paceline.training.pace import Gate

KEYS_A_LINE = 16


class Push:
    """What one worker has pushed for the clock that is being folded."""

    def __init__(self, keys: NDArray[Any], sums: NDArray[np.float32], num_rows: int) -> None:
        self.keys = keys
        self.sums = sums
        self.num_rows = num_rows


class Shard:
    """The table of one model: keys 0 to `features` (the last is the bias), `width` numbers each."""

    def __init__(self, settings: OptimizerConfig, features: int, key_dtype: np.dtype[Any], gate: Gate, num_private: int) -> None:
        self.settings = settings
        self.bias = features
        self.num_keys = features + 1
        self.width = width(settings)
        self.num_private = num_private
        self._gate = gate
        num_workers = len(gate.clocks)
        self._private_stride = -(-(num_private + 1) // KEYS_A_LINE) * KEYS_A_LINE if num_private else 0
        self._first_private = -(-self.num_keys // KEYS_A_LINE) * KEYS_A_LINE
        size = (self._first_private + num_workers * self._private_stride) * self.width
        _check_memory(4 * size, features)
        self.table: NDArray[np.float32] = np.zeros(size, np.float32)
        self._bases = np.zeros((num_workers, max(1, self._private_stride) * self.width), np.float32)
        self._pushes: list[Push | None] = [None] * num_workers
        self._pushed = np.zeros((num_workers, LINE), np.int64)
        self._parts = [FoldPart(key_dtype) for _ in range(num_workers)]

    @property
    def states(self) -> NDArray[np.float32]:
        """The states of all keys, [keys, width], sharing the table's memory."""
        return self.table[: self.num_keys * self.width].reshape(self.num_keys, self.width)

    def weights(self, rows: int) -> NDArray[np.float32]:
        """A copy of all weights [keys], in the blocks' order, under the rules after `rows` rows."""
        out = np.empty(self.num_keys, np.float32)
        all_weights(rules_at(self.settings, rows).keys, self.table, out)
        return out

    def pull(self, rules: Rules, keys: NDArray[Any], out: NDArray[np.float32]) -> None:
        """The weights of `keys` into `out`."""
        gather(rules.keys, self.table, keys, out)

    def push(self, rank: int, clock: int, rules: Rules, push: Push) -> None:
        """Hand in a worker's gradient for a clock; returns when all workers' mean has been applied.

        The workers share the fold, each taking the keys of its part; each key is added up in the order of ranks.
        The arrays of `push` must stay as they are until then.
        """
        self._pushes[rank] = push
        self._pushed[rank, 0] = clock + 1
        self._gate.wait(self._pushed, clock + 1, 0)
        self._fold(rank, rules)
        self._gate.clocks[rank, 0] = clock + 1
        self._gate.wait(self._gate.clocks, clock + 1, self._gate.staleness)

    def _fold(self, rank: int, rules: Rules) -> None:
        pushes = [push for push in self._pushes if push is not None and push.num_rows]
        part = self._parts[rank]
        part.begin(sum(len(push.keys) for push in pushes))
        for push in pushes:
            part.add(push, rank, len(self._parts))
        num_rows = sum(push.num_rows for push in pushes)
        apply_gradient(
            rules.keys, rules.bias, self.table, self.bias, part.distinct[: part.count], part.totals, num_rows
        )

    def enter(self, clock: int) -> None:
        """Ready the shard and its gate for workers at `clock`. Only while all are paused."""
        self._pushed[:, 0] = clock
        self._gate.enter(clock)

    def private(self, rank: int) -> tuple[int, NDArray[np.float32]]:
        """The first key of a worker's private copies, and what they were when last taken over."""
        return self._first_private + rank * self._private_stride, self._bases[rank]

    def settle(self) -> None:
        """Make the table and all private copies agree. Only while all workers are paused."""
        if not self.num_private:
            return
        step, hot = self.width, self.num_private
        # The first round adds every worker's changes to the table, the second hands each the sum.
        for rank in [*range(len(self._bases))] * 2:
            first, base = self.private(rank)
            merge_private(self.table, 0, first * step, base, 0, hot * step)
            merge_private(self.table, self.bias * step, (first + hot) * step, base, hot * step, step)

    def drop_private(self) -> None:
        """Forget private copies after the table was filled from elsewhere."""
        self.table[self._first_private * self.width :] = 0
        self._bases[:] = 0
        self.settle()


class FoldPart:
    """One worker's share of a fold: totals by key, in scratch that grows as needed."""

    def __init__(self, key_dtype: np.dtype[Any]) -> None:
        self._key_dtype = key_dtype
        self._turn = 0
        self.count = 0
        self._make_room(64)

    def begin(self, num_keys: int) -> None:
        """Start a new clock, for at most `num_keys` keys."""
        if num_keys > len(self.totals):
            self._make_room(num_keys + num_keys // 4)
        if self._turn == 255:
            self._slots[:] = 0
            self._turn = 0
        self._turn += 1
        self.count = 0

    def add(self, push: Push, part: int, parts: int) -> None:
        """Add the sums of a worker's keys that fall to this part."""
        self.count = add_in(
            push.keys, push.sums, part, parts, self._slots, self._turn, self.distinct, self.totals, self.count
        )

    def _make_room(self, num_keys: int) -> None:
        self._slots = np.zeros((1 << (2 * num_keys).bit_length(), 2), self._key_dtype)
        self.distinct = np.zeros(num_keys, self._key_dtype)
        self.totals = np.zeros(num_keys, np.float32)
        self._turn = 0


def _check_memory(needed_bytes: int, features: int) -> None:
    available = psutil.virtual_memory().available
    if needed_bytes > available:
        raise ConfigError(
            f"a model of {features:,} features needs {needed_bytes / 1e9:.1f} GB of memory; {available / 1e9:.1f} GB are free",
            "prepare the data with fewer features (--hash-bits), or choose --optimizer sgd, which needs the least",
        )
