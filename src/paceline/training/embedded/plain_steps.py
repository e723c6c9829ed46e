"""Steps of any model, one at a time, in Python: gather, compute, apply.

In sync the threads add up the gradients rank by rank, each for its part of the parameters, so the bits do not depend on
their number and are those of shards on a cluster. At other paces each worker applies its gradient as soon as it has it,
one after the other.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.data.rows import Clocks, Piece
from paceline.kernels.gate import WAITED, passes, slowest, tick
from paceline.kernels.numbering import number_keys
from paceline.kernels.steps import AT_GATE, HANDED_IN, fold_part
from paceline.models.model import Compute, Step
from paceline.parameters.keyed import KeyedStore
from paceline.parameters.scratch import Fold, Pushes, Scratch
from paceline.parameters.store import DenseValues, Numbers
from paceline.training.pace import Gate


@dataclass
class TableGradients:
    """The table and all workers' gradients of it, as one thread uses them."""

    store: KeyedStore
    pushes: Pushes

    def __post_init__(self) -> None:
        self._scratch = Scratch(self.store.layout)
        self._room = Fold.make(256, 0, self.store.layout)

    def prepare(self, step: Step, rank: int) -> Step:
        """Number the distinct keys of a step's rows, and gather their values."""
        rows, dim = step.rows, self.store.dim
        room = self._scratch.room_for(rows.num_nonzeros)
        count = number_keys(
            rows.keys, self._scratch.bias, room.slots, room.direct, room.turn, room.distinct, room.local
        )
        self._keys = room.distinct[: count if rows.num_rows else 0]
        weights = room.weights[: count * dim]
        self.store.gather(room.distinct[:count], weights)
        return step._replace(local=room.local, weights=weights, sums=room.sums[: count * dim])

    def hand_in(self, rank: int) -> None:
        """Let all threads see the gradient of the step that was prepared last."""
        self.pushes.take(rank, self._keys, self._scratch.buffers.sums)

    def apply(self, rank: int, rows: int, trained: int) -> None:
        """Update the table by one worker's gradient."""
        self.store.apply(self._keys, self._scratch.buffers.sums, rows, trained)

    def fold(self, part: int, parts: int, rows: NDArray[np.int64], trained: int) -> None:
        """Apply the mean of all workers' gradients to one part of the keys; `rows` by rank."""
        num_keys = self.pushes.num_keys(part)
        if num_keys > len(self._room.distinct):
            self._room = Fold.make(num_keys * 5 // 4, 0, self.store.layout)
        fold_part(self.store.arrays_at(trained), self.pushes, self._room, part, int(rows.sum()))


@dataclass
class DenseGradients:
    """The dense values and all workers' gradients of them [workers, values], as one thread uses them.

    `own` is a copy of the values, if the thread needs one that nobody changes meanwhile.
    """

    store: DenseValues
    sums: Numbers
    own: Numbers | None

    def prepare(self, step: Step, rank: int) -> Step:
        """Give a step the values."""
        if self.own is not None:
            self.store.gather(0, self.own)
        values = self.store.values if self.own is None else self.own
        return step._replace(dense=values, dense_sums=self.sums[rank])

    def apply(self, rank: int, rows: int, trained: int) -> None:
        """Update the values by one worker's gradient."""
        self.store.apply(0, self.sums[rank], rows, trained)

    def fold(self, part: int, parts: int, rows: NDArray[np.int64], trained: int) -> None:
        """Apply the mean of all workers' gradients to one part of the values; `rows` by rank."""
        first, stop = self.store.size * part // parts, self.store.size * (part + 1) // parts
        pushes = [(first, self.sums[rank][first:stop]) for rank in np.flatnonzero(rows).tolist()]
        self.store.fold(pushes, int(rows.sum()), trained)


@dataclass
class PlainWorker:
    """What one thread computes gradients with; `num_rows` by rank are those of the gradients."""

    compute: Compute
    reader: Any
    num_rows: NDArray[np.int64]
    parameters: list[TableGradients | DenseGradients]
    table: TableGradients | None

    def gradient(self, rank: int, rows: Any, position: int) -> Any:
        """Compute a worker's gradient of some rows; the sum of their losses."""
        step = Step(rows, (rank, position))
        for one in self.parameters:
            step = one.prepare(step, rank)
        self.num_rows[rank] = rows.num_rows
        return self.compute.gradient(step)

    def warm_up(self, rank: int, gate: Gate) -> None:
        """Load or compile the loops; changes nothing."""
        self.gradient(rank, self.reader.between(0, 0), 0)
        slowest(gate.clocks)
        passes(gate.clocks, 0, gate.staleness, 0, gate.leads, 0)
        tick(gate.clocks, 0, int(gate.clocks[0, 0]))


def make_workers(computes: list[Compute], readers: list[Any], table: KeyedStore | None, dense: DenseValues | None,
                 num_workers: int, batch_nonzeros: int, alone: bool) -> list[PlainWorker]:  # fmt: skip
    """What each thread computes with; the loops of a table are loaded.

    `alone`: nobody changes the parameters while a thread computes.
    """
    num_rows = np.zeros(num_workers, np.int64)
    sums = None if dense is None else dense.make_sums(num_workers)
    pushes = None if table is None else Pushes.make(num_workers, len(readers), batch_nonzeros, table.layout)
    if table is not None:
        table.warm_up()
    found = []
    for compute, reader in zip(computes, readers, strict=True):
        keyed = values = None
        if table is not None and pushes is not None:
            keyed = TableGradients(table, pushes)
        if dense is not None and sums is not None:
            own = dense.make_sums(1)[0] if compute.holds_values and not alone else None
            values = DenseGradients(dense, sums, own)
        parameters = [one for one in (values, keyed) if one is not None]
        found.append(PlainWorker(compute, reader, num_rows, parameters, keyed))
    return found


@dataclass
class PlainSteps:
    """Steps of one worker whose gradients are applied as they arrive."""

    rank: int
    worker: PlainWorker
    gate: Gate
    applying: threading.Lock
    most = 1

    def warm_up(self) -> None:
        self.worker.warm_up(self.rank, self.gate)

    def read(self, work: Piece) -> None:
        self._start = work.start
        self._rows = self.worker.reader.between(work.start, work.stop)

    def advance(self) -> tuple[bool, Any]:
        gate, rank = self.gate, self.rank
        clock = int(gate.clocks[rank, 0])
        if not passes(gate.clocks, clock, gate.staleness, gate.spins, gate.leads, rank):
            return False, 0.0
        gate.leads[rank, 0] = max(gate.leads[rank, 0], clock - slowest(gate.clocks))
        losses = self.worker.gradient(rank, self._rows, self._start)
        began = time.perf_counter_ns()
        with self.applying:
            gate.leads[rank, WAITED] += time.perf_counter_ns() - began
            for one in self.worker.parameters:
                one.apply(rank, self._rows.num_rows, self._start)
        tick(gate.clocks, rank, clock + 1)
        return True, losses


@dataclass
class PlainClockSteps:
    """Steps of the workers of one thread in sync."""

    part: int
    ranks: list[int]
    worker: PlainWorker
    gate: Gate
    handed_in: NDArray[np.int64]
    most = 1

    def warm_up(self) -> None:
        self.worker.warm_up(self.ranks[0], self.gate)

    def read(self, work: Clocks) -> None:
        self._clocks, self._phase = work, AT_GATE
        self._first, stop = work.slice(0, self.ranks[0]).start, work.slice(0, self.ranks[-1]).stop
        self._rows = self.worker.reader.between(self._first, stop)

    def advance(self) -> tuple[bool, Any]:
        gate, clocks, part = self.gate, self._clocks, self.part
        clock, losses = int(gate.clocks[self.ranks[0], 0]), 0.0
        if self._phase == AT_GATE:
            if not passes(gate.clocks, clock, 0, gate.spins, self.handed_in, part):
                return False, losses
            for rank in self.ranks:
                start, stop = clocks.slice(0, rank)
                rows = self._rows.slice(start - self._first, stop - self._first)
                losses += self.worker.gradient(rank, rows, start)
                if self.worker.table is not None:
                    self.worker.table.hand_in(rank)
            tick(self.handed_in, part, clock + 1)
            self._phase = HANDED_IN
        if not passes(self.handed_in, clock + 1, 0, gate.spins, self.handed_in, part):
            return False, losses
        for one in self.worker.parameters:
            one.fold(part, len(self.handed_in), self.worker.num_rows, clocks.start)
        for rank in self.ranks:
            tick(gate.clocks, rank, clock + 1)
        return True, losses
