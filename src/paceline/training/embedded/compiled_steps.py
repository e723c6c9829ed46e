"""Steps of models whose gradient compiled loops know: many of them in one call, on a table that all threads see."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.data.rows import Clocks, Piece
from paceline.kernels.steps import AT_GATE, OUT_OF_ROOM, ClockGate, train_batches, train_clocks
from paceline.models.model import Model
from paceline.parameters.keyed import KeyedStore, PrivateCopies
from paceline.parameters.scratch import Fold, Pushes, Scratch
from paceline.training.pace import Gate

ROWS_PER_CALL = 4_096


class RowSteps:
    """Steps of one row each, read where the rows lie, by the model's own loop for them."""

    most_batches = 0

    def __init__(self, rank: int, reader: Any, model: Model, store: KeyedStore, private: PrivateCopies,
                 gate: Gate) -> None:  # fmt: skip
        self._reader = reader
        self._model = model
        self._store = store
        self._private = private.of(rank)
        self._gate = gate.view(rank)
        self._row_count = 0
        self._found: list[tuple[Any, NDArray[np.int32]]] = []

    def warm_up(self) -> None:
        self.read(Piece(0, 1))
        self._found = [(block, rows[:0]) for block, rows in self._found]
        self.advance(1)

    def read(self, piece: Piece) -> None:
        self._found = list(self._reader.in_place(piece.positions))
        self._ends = np.cumsum([len(rows) for _, rows in self._found]).tolist()
        self._table = self._store.arrays_at(piece.start)

    def advance(self, done: int) -> tuple[int, float]:
        losses = 0.0
        for (block, rows), end in zip(self._found, self._ends, strict=True):
            if done >= end and len(rows):
                continue
            start = done - (end - len(rows))
            now, more = self._model.train_rows(
                self._model.kernel, self._table, block, rows, start, self._row_count, self._private, self._gate
            )
            self._row_count += now - start
            losses, done = losses + more, done + now - start
            if now < len(rows):
                break
        return done, losses


class BatchSteps:
    """Steps of many rows."""

    most_batches = 0

    def __init__(self, rank: int, reader: Any, model: Model, store: KeyedStore, gate: Gate, batch_size: int) -> None:
        self._reader = reader
        self._model = model
        self._store = store
        self._scratch = Scratch(store.layout)
        self._gate = gate.view(rank)
        self._batch_size = batch_size
        self._rows: Any = None

    def warm_up(self) -> None:
        self.read(Piece(0, 1))
        self._rows = self._rows.slice(0, 0)
        self.advance(0)

    def read(self, piece: Piece) -> None:
        self._rows = self._reader.batch(piece.positions)
        offsets = self._rows.offsets
        ends = np.append(offsets[:: self._batch_size], offsets[-1])
        self._buffers = self._scratch.room_for(int(np.diff(ends).max()))
        self._table = self._store.arrays_at(piece.start)

    def advance(self, done: int) -> tuple[int, float]:
        return train_batches(
            self._model.kernel, self._table, self._rows, done, self._batch_size, self._buffers, self._gate
        )


class CompiledClockSteps:
    """Steps of the workers of one thread in sync."""

    def __init__(self, part: int, ranks: list[int], reader: Any, model: Model, store: KeyedStore, gate: Gate,
                 batch_size: int, pushes: Pushes, handed_in: NDArray[np.int64]) -> None:  # fmt: skip
        self._ranks = np.array(ranks)
        self._reader = reader
        self._model = model
        self._store = store
        self._scratch = Scratch(store.layout)
        self._gate = ClockGate(gate.clocks, handed_in, part, gate.spins)
        self._pushes = pushes
        self._fold = self._make_fold(256)
        # A rate that decays changes with every clock; otherwise one call takes many small clocks.
        self.most_clocks = 1 if store.layout.decays else max(1, ROWS_PER_CALL // (len(ranks) * batch_size))

    def warm_up(self) -> None:
        self._reader.batch(np.zeros(1, np.int64))
        self.read(Clocks(np.zeros(0, np.int64), np.zeros(1, np.int64), 0))
        self.advance(0, AT_GATE)

    def read(self, clocks: Clocks) -> None:
        self._rows = self._reader.batch(clocks.positions)
        self._starts = clocks.starts
        longest = int(np.diff(self._rows.offsets[clocks.starts]).max(initial=0))
        self._buffers = self._scratch.room_for(longest)
        self._table = self._store.arrays_at(clocks.trained)

    def advance(self, done: int, phase: int) -> tuple[int, int, float]:
        if phase == OUT_OF_ROOM:
            self._fold = self._make_fold(int(1.25 * self._pushes.counts[:, 0].sum()))
        return train_clocks(
            self._model.kernel, self._table, self._rows, self._starts, self._ranks, self._buffers, self._pushes,
            self._fold, self._gate, done, phase,
        )  # fmt: skip

    def _make_fold(self, num_keys: int) -> Fold:
        return Fold.make(num_keys, len(self._scratch.buffers.direct), self._store.layout)
