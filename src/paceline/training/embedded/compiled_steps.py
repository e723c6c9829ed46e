"""Steps of models whose gradient compiled loops know: many of them in one call, on a table that all threads see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.data.rows import Clocks, Piece
from paceline.kernels.linear import Private
from paceline.kernels.steps import AT_GATE, OUT_OF_ROOM, ClockGate, GateView, train_batches, train_clocks
from paceline.models.model import Model
from paceline.parameters.keyed import KeyedStore
from paceline.parameters.scratch import Fold, Pushes, Scratch

ROWS_PER_CALL = 4_096


@dataclass
class RowSteps:
    """Steps of one row each, read where the rows lie, by the model's own loop for them."""

    reader: Any
    model: Model
    store: KeyedStore
    private: Private
    gate: GateView
    most = 0
    _row_count = 0

    def read(self, work: Piece) -> None:
        self._found = list(self.reader.in_place(work.positions))
        self._start = 0
        self._table = self.store.arrays_at(work.start)

    def warm_up(self) -> None:
        self.read(Piece(0, 1))
        self._found = [(block, rows[:0]) for block, rows in self._found]
        self.advance()

    def advance(self) -> tuple[bool, float]:
        losses = 0.0
        while self._found:
            block, rows = self._found[0]
            stop, more = self.model.train_rows(
                self.model.kernel, self._table, block, rows, self._start, self._row_count, self.private, self.gate
            )
            self._row_count += stop - self._start
            self._start, losses = stop, losses + more
            if stop < len(rows):
                return False, losses
            del self._found[0]
            self._start = 0
        return True, losses


@dataclass
class BatchSteps:
    """Steps of many rows."""

    reader: Any
    model: Model
    store: KeyedStore
    gate: GateView
    batch_size: int
    most = 0

    def __post_init__(self) -> None:
        self._scratch = Scratch(self.store.layout)

    def read(self, work: Piece) -> None:
        self._rows = self.reader.batch(work.positions)
        offsets = self._rows.offsets
        ends = np.append(offsets[:: self.batch_size], offsets[-1])
        self._buffers = self._scratch.room_for(int(np.diff(ends).max()))
        self._table = self.store.arrays_at(work.start)
        self._done = 0

    def warm_up(self) -> None:
        self.read(Piece(0, 1))
        self._rows = self._rows.slice(0, 0)
        self.advance()

    def advance(self) -> tuple[bool, float]:
        self._done, losses = train_batches(
            self.model.kernel, self._table, self._rows, self._done, self.batch_size, self._buffers, self.gate
        )
        return self._done == self._rows.num_rows, losses


@dataclass
class CompiledClockSteps:
    """Steps of the workers of one thread in sync."""

    ranks: NDArray[np.int64]
    reader: Any
    model: Model
    store: KeyedStore
    gate: ClockGate
    batch_size: int
    pushes: Pushes

    def __post_init__(self) -> None:
        self._scratch = Scratch(self.store.layout)
        self._fold = self._make_fold(256)
        # A rate that decays changes with every clock; otherwise one call takes many small clocks.
        decays = self.store.layout.decays
        self.most = 1 if decays else max(1, ROWS_PER_CALL // (len(self.ranks) * self.batch_size))

    def warm_up(self) -> None:
        self.reader.batch(np.zeros(1, np.int64))
        self.read(Clocks(np.zeros(0, np.int64), np.zeros(1, np.int64), 0))
        self.advance()

    def read(self, work: Clocks) -> None:
        self._rows = self.reader.batch(work.positions)
        self._starts = work.starts
        longest = int(np.diff(self._rows.offsets[work.starts]).max(initial=0))
        self._buffers = self._scratch.room_for(longest)
        self._table = self.store.arrays_at(work.trained)
        self._done, self._phase = 0, AT_GATE

    def advance(self) -> tuple[bool, float]:
        if self._phase == OUT_OF_ROOM:
            self._fold = self._make_fold(int(1.25 * self.pushes.counts[:, 0].sum()))
        self._done, self._phase, losses = train_clocks(
            self.model.kernel, self._table, self._rows, self._starts, self.ranks, self._buffers, self.pushes,
            self._fold, self.gate, self._done, self._phase,
        )  # fmt: skip
        return self._done * len(self.ranks) == len(self._starts) - 1, losses

    def _make_fold(self, num_keys: int) -> Fold:
        return Fold.make(num_keys, len(self._scratch.buffers.direct), self.store.layout)
