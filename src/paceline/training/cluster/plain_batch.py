"""A worker's batch of a model that has dense values alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paceline.data.blocks.reader import Reader
from paceline.models.model import Compute, Step


@dataclass
class PlainBatch:
    """One batch: its rows, whose gradient takes all values.

    `dense` are all dense values as the worker has them, and `sums` its gradient of them.
    """

    reader: Reader[Any]
    compute: Compute
    rank: int
    dense: Any
    sums: Any
    number: int = 0
    trained: int = 0
    rows: Any = None

    def read(self, now: Callable[[], int], number: int, start: int, stop: int, trained: int) -> int:
        """Fill in batch `number`, the rows at positions `start` to `stop`; returns `now()` after reading."""
        self.number, self.trained, self._start = number, trained, start
        self.rows = self.reader.between(start, stop)
        return now()

    def gradient(self) -> float:
        """Compute the sums of the gradient; the sum of the losses."""
        step = Step(self.rows, (self.rank, self._start), dense=self.dense, dense_sums=self.sums)
        return float(self.compute.gradient(step))
