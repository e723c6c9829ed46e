"""Where do the parameters live, and how do gradients reach them?

A shard holds the states of its keys in one flat table, in the blocks' key order, and applies what workers push. In one
process the table is memory that every worker sees: behind the keys it has room for each worker's private copies of
the hottest ones, which the fused loop for single rows uses at pace async.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import psutil
from numpy.typing import NDArray

from paceline.config import OptimizerConfig
from paceline.errors import ConfigError
from paceline.kernels.fold import add_in
from paceline.kernels.gate import LINE
from paceline.kernels.logistic import all_weights, apply_gradient, merge_private
from paceline.optimizers import Rules, rules_at, width
from paceline.training.pace import Gate

KEYS_A_LINE = 16
DIRECT_KEYS = 65_536


class Push(NamedTuple):
    """One worker's gradient for a clock: the sums over its rows, by distinct key, and how many rows they are."""

    keys: NDArray[Any]
    sums: NDArray[np.float32]
    num_rows: int


class Shard:
    """The table of one model: keys 0 to `features` (the last is the bias), `width` numbers each."""

    def __init__(self, settings: OptimizerConfig, features: int, key_dtype: np.dtype[Any], gate: Gate,
                 *, num_private: int, num_parts: int) -> None:  # fmt: skip
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
        nothing = Push(np.zeros(0, key_dtype), np.zeros(0, np.float32), 0)
        self._pushes = [nothing] * num_workers
        self._parts = [FoldPart(key_dtype) for _ in range(num_parts)]
        self._handed_in = np.zeros((num_parts, LINE), np.int64)

    @property
    def states(self) -> NDArray[np.float32]:
        """The states of all keys, [keys, width], sharing the table's memory."""
        return self.table[: self.num_keys * self.width].reshape(self.num_keys, self.width)

    def weights(self, rows: int) -> NDArray[np.float32]:
        """A copy of all weights [keys], in the blocks' order, under the rules after `rows` rows."""
        out = np.empty(self.num_keys, np.float32)
        all_weights(rules_at(self.settings, rows).keys, self.table, out)
        return out

    def push(self, rank: int, push: Push) -> None:
        """Hand in a worker's gradient for the coming update. Its arrays must stay as they are until that is done."""
        self._pushes[rank] = push

    def update(self, part: int, clock: int, rules: Rules) -> None:
        """Apply the mean of what all workers pushed for a clock; blocks until they have, not until all is applied.

        The threads that workers run on share this, each taking the keys of its part; whatever the parts, each key is
        added up in the order of ranks.
        """
        self._handed_in[part, 0] = clock + 1
        self._gate.wait(self._handed_in, clock + 1, 0)
        pushes = [push for push in self._pushes if push.num_rows]
        own = self._parts[part]
        own.begin(sum(len(push.keys) for push in pushes))
        for push in pushes:
            own.add(push, part, len(self._parts))
        num_rows = sum(push.num_rows for push in pushes)
        apply_gradient(rules.keys, rules.bias, self.table, self.bias, own.distinct[: own.count], own.totals, num_rows)

    def warm_up(self, rules: Rules) -> None:
        """Load or compile the loops of `update`; changes nothing."""
        part = self._parts[0]
        part.begin(0)
        part.add(self._pushes[0], 0, 1)
        apply_gradient(rules.keys, rules.bias, self.table, self.bias, part.distinct[:0], part.totals, 1)

    def enter(self, clock: int) -> None:
        """Ready the shard and its gate for workers at `clock`. Only while all are paused."""
        self._handed_in[:, 0] = clock
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
            self._direct[:] = 0
            self._turn = 0
        self._turn += 1
        self.count = 0

    def add(self, push: Push, part: int, parts: int) -> None:
        """Add the sums of a worker's keys that fall to this part."""
        self.count = add_in(
            push.keys, push.sums, part, parts, self._slots, self._direct, self._turn, self._own, self.distinct,
            self.totals, self.count,
        )  # fmt: skip

    def _make_room(self, num_keys: int) -> None:
        self._slots = np.zeros((1 << (2 * num_keys).bit_length(), 2), self._key_dtype)
        self._direct = np.zeros(DIRECT_KEYS, np.uint32)
        self._own = np.zeros(num_keys + 1, np.int64)
        self.distinct = np.zeros(num_keys, self._key_dtype)
        self.totals = np.zeros(num_keys, np.float32)
        self._turn = 0


def _check_memory(needed_bytes: int, features: int) -> None:
    available = psutil.virtual_memory().available
    if needed_bytes > available:
        raise ConfigError(
            f"a model of {features:,} features needs {needed_bytes / 1e9:.1f} GB, {available / 1e9:.1f} GB are free",
            "prepare the data with fewer features (--hash-bits), or choose --optimizer sgd, which needs the least",
        )
