"""What does a shard remember of the pulls of its workers? Their keys, and the replies that they got, in one place.

Python and the compiled serving loop use the same memory: a pull that one has taken the other can answer, or answer
again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.serving import (
    ANSWERED,
    BATCH,
    COUNT,
    HEAD_FLOATS,
    HELD,
    NUMBERS,
    QUEUED,
    WORKED_FOR,
    PullArrays,
)
from paceline.training.cluster.steps import Times

Floats = NDArray[np.float32]
FLOATS_PER_LINE = 16


class Pull:
    """One pull: its batch (0 for none), whether it was answered, its keys, and the values that it got."""

    def __init__(self, pulls: Pulls, slot: int) -> None:
        self._pulls, self._slot = pulls, slot
        self._numbers = memoryview(pulls.arrays.numbers[slot])

    @property
    def batch(self) -> int:
        return self._numbers[BATCH]

    @property
    def answered(self) -> bool:
        return bool(self._numbers[ANSWERED])

    @property
    def keys(self) -> NDArray[Any]:
        return self._pulls.arrays.keys[self._slot, : self._numbers[COUNT]]

    @property
    def values(self) -> Floats:
        """The values of its keys, then the dense ones."""
        size = self._pulls.num_values(self._numbers[COUNT])
        return self._pulls.arrays.replies[self._slot, HEAD_FLOATS : HEAD_FLOATS + size]

    @property
    def times(self) -> Times:
        return Times(self._numbers[QUEUED], self._numbers[HELD], self._numbers[WORKED_FOR])

    @times.setter
    def times(self, times: Times) -> None:
        self._numbers[QUEUED], self._numbers[HELD], self._numbers[WORKED_FOR] = times

    def clear(self, count: int) -> NDArray[Any]:
        """Forget what was pulled here before; returns room for this many keys of the next pull."""
        self._numbers[BATCH] = self._numbers[COUNT] = self._numbers[ANSWERED] = 0
        self._pulls.make_room(count)
        return self._pulls.arrays.keys[self._slot, :count]

    def ask(self, batch: int, count: int) -> None:
        """Begin a pull, of keys that are in place and exist."""
        self._numbers[BATCH], self._numbers[COUNT] = batch, count

    def answer(self) -> Floats:
        """The pull is answered now; returns room for its values."""
        self._numbers[ANSWERED] = 1
        return self.values


class Pulls:
    """The last pulls of all workers, `kept` of each, and in sync their last pushes, which wait for each other."""

    def __init__(self, num_workers: int, kept: int, key_dtype: np.dtype[Any], dim: int, num_dense: int,
                 folds: bool) -> None:  # fmt: skip
        self._num_workers, self._kept = num_workers, kept
        self._dim, self._num_dense = dim, num_dense
        self._folds = folds
        self.arrays = self._make(key_dtype, np.zeros((num_workers * kept, NUMBERS), np.int64), 0)
        self._pulls = [Pull(self, slot) for slot in range(num_workers * kept)]

    def begin(self) -> None:
        """Forget all pulls."""
        self.arrays.numbers[:] = 0

    def of(self, rank: int, batch: int) -> Pull:
        """The pull of a batch, or what is kept in its place."""
        return self._pulls[rank * self._kept + batch % self._kept]

    def num_values(self, num_keys: int) -> int:
        """How many values go with this many keys."""
        return num_keys * self._dim + self._num_dense

    def make_room(self, num_keys: int) -> None:
        """Let pulls have this many keys."""
        old = self.arrays
        if num_keys <= old.keys.shape[1]:
            return
        new = self._make(old.keys.dtype, old.numbers, num_keys + num_keys // 4)
        new.rows[:], new.losses[:], new.trained[:] = old.rows, old.losses, old.trained
        # No more than what is in use: the system gives memory to what is written, and one worker may need far more.
        counts = old.numbers[:, COUNT].tolist()
        for slot, count in enumerate(counts):
            new.keys[slot, :count] = old.keys[slot, :count]
            size = HEAD_FLOATS + self.num_values(count)
            new.replies[slot, :size] = old.replies[slot, :size]
        for rank in range(self._num_workers if self._folds else 0):
            size = self.num_values(max(counts[rank * self._kept : (rank + 1) * self._kept]))
            new.sums[rank, :size] = old.sums[rank, :size]
        self.arrays = new

    def _make(self, key_dtype: np.dtype[Any], numbers: NDArray[np.int64], room: int) -> PullArrays:
        slots, size = self._num_workers * self._kept, self.num_values(room)
        replies = np.zeros((slots, -(-(HEAD_FLOATS + size) // FLOATS_PER_LINE) * FLOATS_PER_LINE), np.float32)
        return PullArrays(
            kept=self._kept,
            numbers=numbers,
            keys=np.zeros((slots, room), key_dtype),
            replies=replies,
            words=replies.view(np.int64),
            bytes=replies.view(np.uint8),
            sums=np.zeros((self._num_workers, size if self._folds else 0), np.float32),
            rows=np.zeros(self._num_workers, np.int64),
            losses=np.zeros(self._num_workers),
            trained=np.zeros(self._num_workers, np.int64),
        )
