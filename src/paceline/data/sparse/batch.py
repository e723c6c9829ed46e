"""What do rows look like in memory?

A `Batch` is rows in compressed sparse form: the keys and values of row i are those from `offsets[i]` up to
`offsets[i + 1]`. Everything that reads rows, from the parsers to the compiled loops, speaks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.keys import MARKS, merge_repeats


class Batch(NamedTuple):
    """Rows: `labels` [n], `offsets` int64 [n + 1], `keys` uint32 or uint64, `values` float32. Labels are uint8 (two
    classes, 0 and 1), uint16 (classes) or float32 (numbers).

    >>> rows = Batch.from_lists([1, 0], [[3, 5], [7]], [[1.0, 0.5], [2.0]])
    >>> rows.num_rows, rows.num_nonzeros
    (2, 3)
    """

    labels: NDArray[Any]
    offsets: NDArray[np.int64]
    keys: NDArray[Any]
    values: NDArray[np.float32]

    @property
    def num_rows(self) -> int:
        return len(self.labels)

    @property
    def num_nonzeros(self) -> int:
        return len(self.keys)

    @staticmethod
    def from_lists(labels: Sequence[int], keys: Sequence[Sequence[int]], values: Sequence[Sequence[float]]) -> Batch:
        """A batch from Python lists, for examples and tests."""
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in keys])]).astype(np.int64)
        flat_keys = np.array([key for row in keys for key in row], np.uint32)
        flat_values = np.array([value for row in values for value in row], np.float32)
        return Batch(np.array(labels, np.uint8), offsets, flat_keys, flat_values)

    def slice(self, start: int, stop: int) -> Batch:
        """Rows `start` to `stop`, sharing memory for all but the offsets."""
        first, last = self.offsets[start], self.offsets[stop]
        return Batch(
            self.labels[start:stop],
            self.offsets[start : stop + 1] - first,
            self.keys[first:last],
            self.values[first:last],
        )

    def select(self, mask: NDArray[np.bool_]) -> Batch:
        """The rows where `mask` (bool [n]) holds, copied."""
        lengths = np.diff(self.offsets)
        inside = np.repeat(mask, lengths)
        offsets = np.concatenate([[0], np.cumsum(lengths[mask])]).astype(np.int64)
        return Batch(self.labels[mask], offsets, self.keys[inside], self.values[inside])

    def distinct(self) -> Batch:
        """The same rows with each key at most once per row, its values added; reuses this batch's memory."""
        longest = int(np.diff(self.offsets).max(initial=0))
        seen = np.zeros((max(8, 1 << (2 * longest).bit_length()), 2), np.uint64)
        left = merge_repeats(self.offsets, self.keys, self.values, seen, np.zeros(MARKS, np.uint32))
        return Batch(self.labels, self.offsets, self.keys[:left], self.values[:left])


def concatenate(batches: Sequence[Batch]) -> Batch:
    """One batch of all rows, in order; a single batch is returned unchanged."""
    if len(batches) == 1:
        return batches[0]
    shifts = np.cumsum([0] + [batch.num_nonzeros for batch in batches])
    offsets = [np.zeros(1, np.int64)] + [b.offsets[1:] + s for b, s in zip(batches, shifts[:-1], strict=True)]
    return Batch(
        np.concatenate([b.labels for b in batches]),
        np.concatenate(offsets),
        np.concatenate([b.keys for b in batches]),
        np.concatenate([b.values for b in batches]),
    )
