"""How does a worker get its rows into memory?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.data.rows import BlockRows, EpochOrder
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.dataset import Dataset
from paceline.kernels.reading import count_nonzeros, read_rows


class RowReader:
    """One worker's view of the training rows. Not shared between threads: `batch` reuses its buffers."""

    def __init__(self, dataset: Dataset, order: EpochOrder) -> None:
        self._dataset = dataset
        self._order = order
        self._last = BlockRows(0, 0, 0, np.zeros(0, np.int32))
        self._offsets = np.zeros(1, np.int64)
        self._labels = np.zeros(0, np.uint8)
        self._keys: NDArray[Any] = np.zeros(0, dataset.key_dtype)
        self._values = np.zeros(0, np.float32)

    def in_place(self, positions: NDArray[np.int64]) -> Iterator[tuple[Batch, NDArray[np.int32]]]:
        """The rows at ascending positions of an epoch where they lie: blocks, and which of their rows, in order."""
        for segment in self._order.segments(positions):
            yield self._dataset.block("train", segment.block), segment.rows

    def batch(self, positions: NDArray[np.int64]) -> Batch:
        """The rows at ascending positions of an epoch one behind the other, valid until the next call."""
        return self._copy(list(self.in_place(positions)), len(positions))

    def between(self, start: int, stop: int) -> Batch:
        """Like `batch` for all positions from `start` up to `stop`; quick where the last call's block goes on."""
        found, at = [], start
        while at < stop:
            if not self._last.start <= at < self._last.stop:
                self._last = self._order.block_at(at)
            block, first, end, rows = self._last
            until = min(stop, end)
            found.append((self._dataset.block("train", block), rows[at - first : until - first]))
            at = until
        return self._copy(found, stop - start)

    def _copy(self, found: list[tuple[Batch, NDArray[np.int32]]], num_rows: int) -> Batch:
        if num_rows > len(self._labels) or num_rows * self._dataset.longest_row > len(self._keys):
            self._make_room(num_rows, sum(count_nonzeros(block.offsets, rows) for block, rows in found))
        filled = 0
        for block, rows in found:
            read_rows(block.offsets, block.keys, block.values, block.labels, rows,
                      self._offsets, self._keys, self._values, self._labels, filled)  # fmt: skip
            filled += len(rows)
        last = int(self._offsets[num_rows])
        return Batch(self._labels[:num_rows], self._offsets[: num_rows + 1], self._keys[:last], self._values[:last])

    def _make_room(self, num_rows: int, num_nonzeros: int) -> None:
        if num_rows > len(self._labels):
            self._labels = np.zeros(num_rows, np.uint8)
            self._offsets = np.zeros(num_rows + 1, np.int64)
        if num_nonzeros > len(self._keys):
            self._keys = np.zeros(num_nonzeros + num_nonzeros // 4, self._keys.dtype)
            self._values = np.zeros(len(self._keys), np.float32)
