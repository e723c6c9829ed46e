"""How does a worker get its rows into memory?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic

import numpy as np
from numpy.typing import NDArray

from paceline.data.blocks.dataset import Dataset
from paceline.data.blocks.files import R
from paceline.data.rows import BlockRows, EpochOrder


class Reader(Generic[R]):
    """One worker's view of the training rows, in the order of `order`. Not shared between threads: what `batch` and
    `between` return is valid until the next call.
    """

    def __init__(self, dataset: Dataset[R], order: EpochOrder) -> None:
        self._dataset = dataset
        self._order = order
        self._last = BlockRows(0, 0, 0, np.zeros(0, np.int32))
        self._copy = dataset.kind.buffer(dataset).copy

    def in_place(self, positions: NDArray[np.int64]) -> Iterator[tuple[R, NDArray[np.int32]]]:
        """The rows at ascending positions of an epoch, without copying: blocks, and which of their rows, in order."""
        for block, rows in self._order.find(positions):
            yield self._dataset.block("train", block), rows

    def batch(self, positions: NDArray[np.int64]) -> R:
        """The rows at ascending positions of an epoch, one after the other."""
        return self._copy(list(self.in_place(positions)), len(positions))

    def between(self, start: int, stop: int) -> R:
        """The rows at all positions from `start` up to `stop`; fast while they stay in the last call's block."""
        found, at = [], start
        while at < stop:
            if not self._last.start <= at < self._last.stop:
                self._last = self._order.block_at(at)
            block, first, end, rows = self._last
            until = min(stop, end)
            found.append((self._dataset.block("train", block), rows[at - first : until - first]))
            at = until
        return self._copy(found, stop - start)
