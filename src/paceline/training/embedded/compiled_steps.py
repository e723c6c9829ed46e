"""Steps of models whose gradient compiled loops know: many of them in one call, on a table that all threads see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.data.blocks.reader import EpochBlocks
from paceline.data.rows import Clocks, Piece
from paceline.kernels.private import Private
from paceline.kernels.reading import RowSlice
from paceline.kernels.steps import AT_GATE, OUT_OF_ROOM, ClockGate, GateView, train_batches, train_clocks
from paceline.models.model import Model
from paceline.parameters.keyed import KeyedStore
from paceline.parameters.layout import TableLayout
from paceline.parameters.scratch import Fold, Pushes, Scratch

# Threads that come back to Python wait for one another, so one call trains on this many nonzeros: some 50 ms' worth.
NONZEROS_PER_CALL = 4_000_000


def rows_per_call(dataset: Any) -> int:
    """How many rows one call into a compiled loop should train on."""
    train = dataset.split("train")
    return max(1, int(NONZEROS_PER_CALL * train.rows // max(1, train.nonzeros)))


def kernel_of(model: Model) -> Any:
    """The kernel of a model that has one, for one worker or the workers of one thread."""
    assert model.make_kernel is not None
    return model.make_kernel()


@dataclass
class RowSteps:
    """Steps of one row each, read where the rows lie, by the model's own loop for them."""

    blocks: EpochBlocks
    model: Model
    store: KeyedStore
    private: Private
    gate: GateView

    def __post_init__(self) -> None:
        self.most = rows_per_call(self.blocks.dataset)
        self._kernel = kernel_of(self.model)

    def read(self, work: Piece) -> None:
        self._found = self.blocks.in_place(*work)
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
                self._kernel, self._table, block, rows, self._start, self.private, self.gate
            )
            self._start, losses = stop, losses + more
            if stop < len(rows):
                return False, losses
            del self._found[0]
            self._start = 0
        return True, losses


class LoopBuffers:
    """Where one thread's loops copy rows to and compute."""

    def __init__(self, dataset: Any, layout: TableLayout, batch_size: int) -> None:
        self._scratch = Scratch(layout)
        self._offsets = np.zeros(batch_size + 1, np.int64)
        self._labels = np.zeros(batch_size, dataset.labels.dtype)
        self._weights = np.zeros(batch_size, np.float32) if dataset.manifest.weighted else None
        self._has_fields = bool(dataset.manifest.fields)
        self._key_dtype = dataset.key_dtype
        self._nonzeros = np.zeros(1, np.int64)
        self.grow()

    def grow(self) -> None:
        """Make room for the slice that had none."""
        count = int(self._nonzeros[0]) * 5 // 4
        self.step = self._scratch.room_for(count)
        self.rows = RowSlice(
            self._offsets, np.empty(count, self._key_dtype), np.empty(count, np.float32), self._labels, self._nonzeros,
            self._weights, np.empty(count, np.uint16) if self._has_fields else None,
        )  # fmt: skip
        self._nonzeros[0] = 0

    @property
    def too_small(self) -> bool:
        return bool(self._nonzeros[0])


@dataclass
class BatchSteps:
    """Steps of many rows."""

    blocks: EpochBlocks
    model: Model
    store: KeyedStore
    private: Private
    gate: GateView

    def __post_init__(self) -> None:
        size = self.private.batch_size
        self._kernel = kernel_of(self.model)
        self.most = max(1, rows_per_call(self.blocks.dataset) // size)
        self._buffers = LoopBuffers(self.blocks.dataset, self.store.layout, size)

    def read(self, work: Piece) -> None:
        self._start, self._stop = work
        self._found = self.blocks.between(*work)
        self._table = self.store.arrays_at(work.start)

    def warm_up(self) -> None:
        self.read(Piece(0, 0))
        self.advance()

    def advance(self) -> tuple[bool, float]:
        total = 0.0
        while True:
            buffers = self._buffers
            self._start, losses = train_batches(
                self._kernel, self._table, self._found.addresses, self._start, self._stop, buffers.rows,
                buffers.step, self.private, self.gate,
            )  # fmt: skip
            total += losses
            if not buffers.too_small:
                return self._start == self._stop, total
            buffers.grow()


@dataclass
class CompiledClockSteps:
    """Steps of the workers of one thread in sync."""

    ranks: NDArray[np.int64]
    blocks: EpochBlocks
    model: Model
    store: KeyedStore
    gate: ClockGate
    batch_size: int
    pushes: Pushes

    def __post_init__(self) -> None:
        self._buffers = LoopBuffers(self.blocks.dataset, self.store.layout, self.batch_size)
        self._fold = self._make_fold(256)
        self._kernel = kernel_of(self.model)
        # A rate that decays changes with every clock; otherwise one call takes many clocks.
        rows = len(self.ranks) * self.batch_size
        self.most = 1 if self.store.layout.decays else max(1, rows_per_call(self.blocks.dataset) // rows)

    def warm_up(self) -> None:
        self.read(Clocks(0, 0, 0, 1, 1))
        self.advance()

    def read(self, work: Clocks) -> None:
        self._clocks = work
        self._found = self.blocks.between(work.start, work.stop, self.gate.part, len(self.gate.handed_in))
        self._table = self.store.arrays_at(work.start)
        self._done, self._phase = 0, AT_GATE

    def advance(self) -> tuple[bool, float]:
        total = 0.0
        while True:
            buffers = self._buffers
            if self._phase == OUT_OF_ROOM:
                self._fold = self._make_fold(self.pushes.num_keys(self.gate.part) * 5 // 4)
            self._done, self._phase, losses = train_clocks(
                self._kernel, self._table, self._found.addresses, self._clocks, self.ranks, buffers.rows,
                buffers.step, self.pushes, self._fold, self.gate, self._done, self._phase,
            )  # fmt: skip
            total += losses
            if buffers.too_small:
                buffers.grow()
            elif self._phase != OUT_OF_ROOM:
                return self._done == self._clocks.num_clocks, total

    def _make_fold(self, num_keys: int) -> Fold:
        return Fold.make(num_keys, len(self._buffers.step.direct), self.store.layout)
