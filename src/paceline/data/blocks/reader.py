"""How does a worker get its rows into memory?"""

from __future__ import annotations

import threading
from functools import lru_cache, partial
from typing import Any, Generic, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.data.blocks.dataset import Dataset
from paceline.data.blocks.files import R
from paceline.data.rows import BlockRows, EpochOrder
from paceline.kernels.reading import addresses


class Reader(Generic[R]):
    """One worker's view of the training rows, in the order of `order`. Not shared between threads: what `between`
    returns is valid until the next call.
    """

    def __init__(self, dataset: Dataset[R], order: EpochOrder) -> None:
        self._dataset = dataset
        self._order = order
        self._last = BlockRows(0, 0, 0, np.zeros(0, np.int32))
        self._copy = dataset.kind.buffer(dataset).copy

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


class Found(NamedTuple):
    """Where compiled loops find rows: a table of addresses (`kernels/reading.py`), and the arrays that lie there."""

    addresses: NDArray[np.int64]
    arrays: list[Any]


class EpochBlocks:
    """The blocks of training rows, for loops that read rows where they lie. Threads may share it."""

    def __init__(self, dataset: Dataset[Any], order: EpochOrder) -> None:
        self.dataset = dataset
        self._order = order
        # In sync all threads ask for the same rows, one after the other. Not a cache of a method, which would keep the
        # blocks in memory until the next garbage collection.
        self._find = lru_cache(4)(partial(_find_rows, dataset, order))
        self._lock = threading.Lock()

    def between(self, start: int, stop: int, part: int = 0, parts: int = 1) -> Found:
        """Where the rows at positions `start` up to `stop` are.

        Of `parts` threads that ask for the same rows, each opens and shuffles a part of the blocks.
        """
        if parts == 1:
            return _find_rows(self.dataset, self._order, start, stop)
        self.in_place(*(start + (stop - start) * i // parts for i in (part, part + 1)))
        with self._lock:
            return self._find(start, stop)

    def in_place(self, start: int, stop: int) -> list[tuple[Any, NDArray[np.int32]]]:
        """Blocks, and which of their rows are at positions `start` up to `stop`, in order."""
        return [(self.dataset.block("train", block), rows) for block, rows in self._order.between(start, stop)]


def _find_rows(dataset: Dataset[Any], order: EpochOrder, start: int, stop: int) -> Found:
    found, at = [], start
    while at < stop:
        block, first, at, rows = order.block_at(at)
        found.append((first, rows, dataset.block("train", block)))
    return Found(addresses(found), found)
