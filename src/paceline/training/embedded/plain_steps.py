"""Steps of any model, one at a time, in Python: gather, compute, apply.

In sync the threads add up the gradients rank by rank, each for its part of the parameters, so the bits do not depend on
their number and are those of shards on a cluster. At other paces each worker applies its gradient when it has it, one
after the other.
"""

from __future__ import annotations

import threading
import time
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.data.rows import Clocks, Piece
from paceline.kernels.gate import WAITED, passes, slowest, tick
from paceline.kernels.numbering import number_keys
from paceline.kernels.steps import AT_GATE, HANDED_IN, fold_part
from paceline.models.model import Compute, Step
from paceline.parameters.keyed import KeyedStore
from paceline.parameters.scratch import Fold, Pushes, Scratch
from paceline.training.pace import Gate


class Stores(NamedTuple):
    """Where the parameters of a run live in this process."""

    table: KeyedStore | None
    dense: Any


class Gradients(NamedTuple):
    """Room for the gradients of some workers: of the table, and of the dense values [workers, values]."""

    table: Pushes | None
    dense: Any
    rows: NDArray[np.int64]

    @staticmethod
    def make(stores: Stores, num_workers: int, batch_nonzeros: int) -> Gradients:
        return Gradients(
            Pushes.make(num_workers, batch_nonzeros, stores.table.layout) if stores.table is not None else None,
            stores.dense.make_sums(num_workers) if stores.dense is not None else None,
            np.zeros(num_workers, np.int64),
        )


class PlainWorker:
    """Computes gradients with one worker's part of a model."""

    def __init__(self, compute: Compute, stores: Stores, gradients: Gradients, alone: bool) -> None:
        """`alone`: nobody else changes the parameters while this worker computes."""
        self._compute = compute
        self._stores = stores
        self._gradients = gradients
        self._scratch = Scratch(stores.table.layout) if stores.table is not None else None
        holds = stores.dense is not None and compute.holds_values and not alone
        self._own = stores.dense.make_sums(1)[0] if holds else None

    def gradient(self, slot: int, rows: Any, turn: tuple[int, int]) -> Any:
        """Compute the gradient of some rows into a slot; the sum of their losses."""
        table, dense = self._gradients.table, self._gradients.dense
        step = Step(rows, turn)
        if self._stores.dense is not None:
            step = step._replace(dense=self._dense_values(), dense_sums=dense[slot])
        if table is not None:
            step = self._number(step, table.keys[slot], table.sums[slot], table.counts, slot)
        self._gradients.rows[slot] = rows.num_rows
        return self._compute.gradient(step)

    def _number(self, step: Step, distinct: Any, sums: Any, counts: Any, slot: int) -> Step:
        """Find the distinct keys of a step's rows, and gather their values."""
        store = self._stores.table
        assert store is not None
        assert self._scratch is not None
        buffers = self._scratch.room_for(step.rows.num_nonzeros)
        keys = step.rows.keys
        count = number_keys(
            keys, self._scratch.bias, buffers.slots, buffers.direct, buffers.turn, distinct, buffers.local
        )
        counts[slot, 0] = count if step.rows.num_rows else 0
        weights = buffers.weights[: count * store.dim]
        store.gather(distinct[:count], weights)
        return step._replace(local=buffers.local, weights=weights, sums=sums[: count * store.dim])

    def _dense_values(self) -> Any:
        if self._own is None:
            return self._stores.dense.values
        self._stores.dense.copy_values_to(self._own)
        return self._own


class PlainSteps:
    """Steps of one worker whose gradients are applied as they arrive."""

    most_batches = 1

    def __init__(self, rank: int, reader: Any, worker: PlainWorker, stores: Stores, gradients: Gradients, gate: Gate,
                 applying: threading.Lock) -> None:  # fmt: skip
        self._rank = rank
        self._reader = reader
        self._worker = worker
        self._stores = stores
        self._gradients = gradients
        self._gate = gate
        self._applying = applying

    def warm_up(self) -> None:
        self._worker.gradient(self._rank, self._reader.between(0, 0), (0, 0))
        warm_up(self._stores, self._gate)

    def read(self, piece: Piece) -> None:
        self._start = piece.start
        self._rows = self._reader.between(piece.start, piece.stop)

    def advance(self, done: int) -> tuple[int, Any]:
        gate, rank = self._gate, self._rank
        clock = int(gate.clocks[rank, 0])
        if not passes(gate.clocks, clock, gate.staleness, gate.spins, gate.leads, rank):
            return done, 0.0
        gate.leads[rank, 0] = max(gate.leads[rank, 0], clock - slowest(gate.clocks))
        losses = self._worker.gradient(rank, self._rows, (rank, self._start))
        began = time.perf_counter_ns()
        with self._applying:
            gate.leads[rank, WAITED] += time.perf_counter_ns() - began
            self._apply(self._rows.num_rows)
        tick(gate.clocks, rank, clock + 1)
        return self._rows.num_rows, losses

    def _apply(self, rows: int) -> None:
        table, dense = self._gradients.table, self._gradients.dense
        if table is not None and self._stores.table is not None:
            count = int(table.counts[self._rank, 0])
            self._stores.table.apply(table.keys[self._rank, :count], table.sums[self._rank], rows, self._start)
        if dense is not None and rows:
            self._stores.dense.apply(0, dense[self._rank], rows, self._start)


class PlainClockSteps:
    """Steps of the workers of one thread in sync."""

    most_clocks = 1

    def __init__(self, part: int, ranks: list[int], reader: Any, worker: PlainWorker, stores: Stores,
                 gradients: Gradients, gate: Gate, handed_in: NDArray[np.int64]) -> None:  # fmt: skip
        self._part = part
        self._parts = len(handed_in)
        self._ranks = ranks
        self._reader = reader
        self._worker = worker
        self._stores = stores
        self._gradients = gradients
        self._gate = gate
        self._handed_in = handed_in
        self._fold_room = Fold.make(256, 0, stores.table.layout) if stores.table is not None else None

    def warm_up(self) -> None:
        self._worker.gradient(self._ranks[0], self._reader.between(0, 0), (0, 0))
        warm_up(self._stores, self._gate)

    def read(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._rows = self._reader.batch(clocks.positions)

    def advance(self, done: int, phase: int) -> tuple[int, int, Any]:
        gate, clocks, part = self._gate, self._clocks, self._part
        clock, losses = int(gate.clocks[self._ranks[0], 0]), 0.0
        if phase == AT_GATE:
            if not passes(gate.clocks, clock, 0, gate.spins, self._handed_in, part):
                return done, AT_GATE, losses
            for place, rank in enumerate(self._ranks):
                start, stop = clocks.starts[place], clocks.starts[place + 1]
                turn = (rank, int(clocks.positions[start])) if stop > start else (rank, 0)
                losses += self._worker.gradient(rank, self._rows.slice(start, stop), turn)
            tick(self._handed_in, part, clock + 1)
        if not passes(self._handed_in, clock + 1, 0, gate.spins, self._handed_in, part):
            return done, HANDED_IN, losses
        self._fold(clocks.trained)
        for rank in self._ranks:
            tick(gate.clocks, rank, clock + 1)
        return done + 1, AT_GATE, losses

    def _fold(self, trained: int) -> None:
        """Apply the mean of all workers' gradients to this thread's part of the parameters."""
        rows = int(self._gradients.rows.sum())
        table, dense = self._gradients.table, self._gradients.dense
        if table is not None and self._stores.table is not None and self._fold_room is not None:
            store, num_keys = self._stores.table, int(table.counts[:, 0].sum())
            if num_keys > len(self._fold_room.distinct):
                self._fold_room = Fold.make(num_keys * 5 // 4, 0, store.layout)
            fold_part(store.arrays_at(trained), table, self._fold_room, self._part, self._parts, rows)
        if dense is not None:
            there = np.flatnonzero(self._gradients.rows)
            size = self._stores.dense.size
            first, stop = size * self._part // self._parts, size * (self._part + 1) // self._parts
            total = dense[there[0]]
            for rank in there[1:]:
                self._stores.dense.add(total, dense[rank], first, stop)
            self._stores.dense.apply(first, total[first:stop], rows, trained)


def warm_up(stores: Stores, gate: Gate) -> None:
    """Load the loops that every model and pace need; changes nothing."""
    for store in stores:
        if store is not None:
            store.warm_up()
    slowest(gate.clocks)
    passes(gate.clocks, 0, gate.staleness, 0, gate.leads, 0)
    tick(gate.clocks, 0, int(gate.clocks[0, 0]))
