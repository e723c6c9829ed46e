"""Where do the parameters live?

A shard holds the states of its keys in one flat table, in the blocks' key order. In one process the table is memory
that every worker reads and writes: behind the keys it has room for each worker's private copies of the hottest ones,
which the loop for single rows uses at pace async.
"""

from __future__ import annotations

import numpy as np
import psutil
from numpy.typing import NDArray

from paceline.config import OptimizerConfig
from paceline.errors import ConfigError
from paceline.kernels.logistic import all_weights, merge_private
from paceline.parameters.optimizers import rules_at, width

KEYS_A_LINE = 16


class Shard:
    """The table of one model: keys 0 to `features` (the last is the bias), `width` numbers each."""

    def __init__(self, settings: OptimizerConfig, features: int, num_workers: int, num_private: int) -> None:
        self.settings = settings
        self.bias = features
        self.num_keys = features + 1
        self.width = width(settings)
        self.num_private = num_private
        # A spare cache line between the parts of two workers: arrays need not begin at the start of one.
        self._private_stride = (-(-(num_private + 1) // KEYS_A_LINE) + 1) * KEYS_A_LINE if num_private else 0
        self._first_private = -(-self.num_keys // KEYS_A_LINE) * KEYS_A_LINE
        size = (self._first_private + num_workers * self._private_stride) * self.width
        check_memory(4 * size, features)
        self.table: NDArray[np.float32] = np.zeros(size, np.float32)
        self._bases = np.zeros((num_workers, max(1, self._private_stride) * self.width), np.float32)

    @property
    def states(self) -> NDArray[np.float32]:
        """The states of all keys, [keys, width], sharing the table's memory."""
        return self.table[: self.num_keys * self.width].reshape(self.num_keys, self.width)

    def weights(self, rows: int) -> NDArray[np.float32]:
        """A copy of all weights [keys], in the blocks' order, under the rules after `rows` rows."""
        out = np.empty(self.num_keys, np.float32)
        all_weights(*rules_at(self.settings, rows), self.table, self.bias, out)
        return out

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


def check_memory(needed_bytes: int, features: int) -> None:
    available = psutil.virtual_memory().available
    if needed_bytes > available:
        raise ConfigError(
            f"a model of {features:,} features needs {needed_bytes / 1e9:.1f} GB, {available / 1e9:.1f} GB are free",
            "prepare the data with fewer features (--hash-bits), or choose --optimizer sgd, which needs the least",
        )
