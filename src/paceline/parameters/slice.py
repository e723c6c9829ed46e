"""Which part of the parameters does a shard hold, and what can be done to it?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.config import OptimizerConfig
from paceline.kernels.fold import add_in
from paceline.kernels.keys import key_dtype
from paceline.kernels.logistic import all_weights, apply_gradient, gather
from paceline.models.logistic import DIRECT_KEYS, Fold
from paceline.parameters.optimizers import Rules, rules_at, width
from paceline.parameters.table import check_memory

Floats = NDArray[np.float32]


class Slice:
    """The states of every `num_shards`-th key from `shard` on; the bias is key number `features`.

    Keys are named by their index here. Not for several threads at once.
    """

    def __init__(self, settings: OptimizerConfig, features: int, shard: int, num_shards: int) -> None:
        self.num_keys = len(range(shard, features + 1, num_shards))
        self.width = width(settings)
        self.key_dtype = np.dtype(key_dtype(features))
        # Beyond the last index where another shard holds the bias.
        self.bias = features // num_shards if features % num_shards == shard else self.num_keys
        # The table, and a copy of it while a checkpoint is taken.
        check_memory(2 * 4 * self.num_keys * self.width, features)
        self.table: Floats = np.zeros(self.num_keys * self.width, np.float32)
        self._settings = settings
        self._num_direct = min(DIRECT_KEYS // num_shards, self.num_keys)
        self._fold = Fold.make(256, self._num_direct, self.key_dtype)
        self._rules = rules_at(settings, 0)
        self._copy: Floats = np.empty(0, np.float32)

    def gather(self, keys: NDArray[Any], out: Floats) -> None:
        """The weights of `keys` into `out`."""
        gather(*self._rules, self.table, self.bias, keys, out)

    def apply(self, keys: NDArray[Any], sums: Floats, rows: int, trained: int) -> None:
        """Update each of the distinct `keys` by its mean gradient over the rows, after `trained` rows."""
        if rows:
            apply_gradient(*self._rules_at(trained), self.table, self.bias, keys, sums, rows)

    def fold(self, pushes: Sequence[tuple[NDArray[Any], Floats]], rows: int, trained: int) -> None:
        """One update of the mean gradient over the rows of all pushes, added up in their order."""
        num_keys = sum(len(keys) for keys, _ in pushes)
        if num_keys > len(self._fold.totals):
            self._fold = Fold.make(num_keys * 5 // 4, self._num_direct, self.key_dtype)
        fold = self._fold
        if fold.turn[0] == 255:
            fold.slots[:], fold.direct[:], fold.turn[0] = 0, 0, 0
        fold.turn[0] += 1
        count, turn = 0, int(fold.turn[0])
        for keys, sums in pushes:
            count = add_in(
                keys, sums, 0, 1, fold.slots, fold.direct, turn, fold.own, fold.distinct, fold.totals, count
            )  # fmt: skip
        self.apply(fold.distinct[:count], fold.totals[:count], rows, trained)

    def weights(self, start: int, count: int, rows: int) -> Floats:
        """A copy of the weights of keys `start` to `start + count`, under the rules after `rows` rows."""
        out = np.empty(count, np.float32)
        states = self.table[start * self.width : (start + count) * self.width]
        bias = self.bias - start if start <= self.bias < start + count else count
        all_weights(*self._rules_at(rows), states, bias, out)
        return out

    def take_copy(self) -> None:
        """Set all states aside, for `copied`."""
        if not len(self._copy):
            self._copy = np.empty_like(self.table)
        np.copyto(self._copy, self.table)

    def copied(self, start: int, count: int) -> Floats:
        """States of the last copy; a view."""
        return self._copy[start * self.width : (start + count) * self.width]

    def load(self, start: int, states: Floats) -> None:
        """Put states in place from key `start` on."""
        self.table[start * self.width : start * self.width + len(states)] = states

    def clear(self) -> None:
        """All states as a run begins; memory that is new costs nothing until it is used."""
        self.table = np.zeros(len(self.table), np.float32)

    def warm_up(self) -> None:
        """Load or compile the loops; changes nothing."""
        keys, sums = np.zeros(0, self.key_dtype), np.zeros(0, np.float32)
        self.gather(keys, sums)
        self.apply(keys, sums, 1, 0)
        self.fold([(keys, sums)], 1, 0)

    def _rules_at(self, rows: int) -> Rules:
        """Rules stay the same unless a rate decays."""
        return rules_at(self._settings, rows) if self._settings.decay_rows else self._rules
