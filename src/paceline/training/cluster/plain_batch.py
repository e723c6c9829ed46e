"""A worker's batch of a model that has dense values alone."""

from __future__ import annotations

from typing import Any

from paceline.data.blocks.reader import Reader
from paceline.models.model import Compute, Step


class PlainBatch:
    """One batch: its rows, whose gradient takes all values."""

    def __init__(self, reader: Reader[Any], compute: Compute, rank: int) -> None:
        self.number = 0
        self.trained = 0
        self.rows: Any
        # All dense values as the worker has them, and its gradient of them.
        self.dense: Any
        self.sums: Any
        self._reader = reader
        self._compute = compute
        self._rank = rank

    def read(self, number: int, start: int, stop: int, trained: int) -> None:
        """Fill in batch `number`, the rows at positions `start` to `stop`."""
        self.number, self.trained, self._start = number, trained, start
        self.rows = self._reader.between(start, stop)

    def prepare(self) -> None:
        """Every batch needs all values: there is nothing to find out."""

    def gradient(self) -> float:
        """Compute the sums of the gradient; the sum of the losses."""
        step = Step(self.rows, (self._rank, self._start), dense=self.dense, dense_sums=self.sums)
        return float(self._compute.gradient(step))
