"""Steps over sparse rows on a GPU. One worker takes them; thousands of rows of its batch are computed at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.data.rows import Clocks, Piece

# One piece of work takes the GPU some milliseconds. This machine prepares the next one meanwhile.
ROWS_PER_PIECE = 1 << 22


@dataclass
class GpuRowSteps:
    """At pace async: an update by each row. `training` is a `torch.sparse.training.SparseTraining`."""

    training: Any
    batch_size: int

    def __post_init__(self) -> None:
        self.most = max(1, ROWS_PER_PIECE // self.batch_size)

    def warm_up(self) -> None:
        self.training.warm_up()

    def read(self, work: Piece) -> None:
        self._work = work

    def advance(self) -> tuple[bool, Any]:
        return True, self.training.train(*self._work, self.batch_size)


@dataclass
class GpuClockSteps:
    """In sync: one update per clock."""

    training: Any
    most = 16

    def warm_up(self) -> None:
        self.training.warm_up()

    def read(self, work: Clocks) -> None:
        self._work = work

    def advance(self) -> tuple[bool, Any]:
        work = self._work
        starts = range(work.start, work.stop, work.clock_rows)
        losses = [self.training.update(start, min(start + work.clock_rows, work.stop)) for start in starts]
        return True, sum(losses)
