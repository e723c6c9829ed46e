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

    `weights` [n], float32, say how much each row counts, and `fields`, uint16, which field each nonzero belongs to;
    None if rows have no weights, or no fields.

    >>> rows = Batch.from_lists([1, 0], [[3, 5], [7]], [[1.0, 0.5], [2.0]])
    >>> rows.num_rows, rows.num_nonzeros
    (2, 3)
    """

    labels: NDArray[Any]
    offsets: NDArray[np.int64]
    keys: NDArray[Any]
    values: NDArray[np.float32]
    weights: NDArray[np.float32] | None = None
    fields: NDArray[np.uint16] | None = None

    @property
    def num_rows(self) -> int:
        return len(self.labels)

    @property
    def num_nonzeros(self) -> int:
        return len(self.keys)

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self if array is not None)

    @staticmethod
    def from_lists(labels: Sequence[int], keys: Sequence[Sequence[int]], values: Sequence[Sequence[float]]) -> Batch:
        """A batch from Python lists, for examples and tests."""
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in keys])]).astype(np.int64)
        flat_keys = np.array([key for row in keys for key in row], np.uint32)
        flat_values = np.array([value for row in values for value in row], np.float32)
        return Batch(np.array(labels, np.uint8), offsets, flat_keys, flat_values)

    def with_labels(self, labels: NDArray[Any]) -> Batch:
        return self._replace(labels=labels)

    def slice(self, start: int, stop: int) -> Batch:
        """Rows `start` to `stop`, sharing memory for all but the offsets."""
        first, last = self.offsets[start], self.offsets[stop]
        return Batch(
            self.labels[start:stop],
            self.offsets[start : stop + 1] - first,
            self.keys[first:last],
            self.values[first:last],
            None if self.weights is None else self.weights[start:stop],
            None if self.fields is None else self.fields[first:last],
        )

    def select(self, mask: NDArray[np.bool_]) -> Batch:
        """The rows where `mask` (bool [n]) holds, copied."""
        lengths = np.diff(self.offsets)
        inside = np.repeat(mask, lengths)
        offsets = np.concatenate([[0], np.cumsum(lengths[mask])]).astype(np.int64)
        return Batch(
            self.labels[mask],
            offsets,
            self.keys[inside],
            self.values[inside],
            None if self.weights is None else self.weights[mask],
            None if self.fields is None else self.fields[inside],
        )

    def distinct(self) -> Batch:
        """The same rows with each key at most once per row, its values added; reuses this batch's memory.

        A key keeps the field in which it comes first.
        """
        longest = int(np.diff(self.offsets).max(initial=0))
        seen = np.zeros((max(8, 1 << (2 * longest).bit_length()), 2), np.uint64)
        left = merge_repeats(self.offsets, self.keys, self.values, self.fields, seen, np.zeros(MARKS, np.uint32))
        fields = None if self.fields is None else self.fields[:left]
        return self._replace(keys=self.keys[:left], values=self.values[:left], fields=fields)

    def copy(self) -> Batch:
        """The same rows in memory of their own."""
        arrays: list[Any] = [None if array is None else array.copy() for array in self]
        return Batch(*arrays)

    def read_only(self) -> Batch:
        """The same rows as read-only views, which compiled loops get from blocks of a folder too."""
        views: list[Any] = [None if array is None else array.view() for array in self]
        for view in views:
            if view is not None:
                view.flags.writeable = False
        return Batch(*views)


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
        _concatenate_present([b.weights for b in batches]),
        _concatenate_present([b.fields for b in batches]),
    )


def _concatenate_present(arrays: Sequence[NDArray[Any] | None]) -> NDArray[Any] | None:
    """All arrays one after the other, or None: either all batches have one or none does."""
    present = [array for array in arrays if array is not None]
    if len(present) not in (0, len(arrays)):
        raise ValueError("some batches have weights or fields, and some have none")
    return np.concatenate(present) if present else None
