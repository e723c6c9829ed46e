"""The operations of a gradient step of any model, one by one, for `paceline diagnose --ops`.

The gradient is one operation here, the compiled loop that steps use. `linear_operations.py` takes that of a linear
model apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from paceline.kernels.numbering import number_keys
from paceline.models.model import Model, Step
from paceline.parameters.dense import DenseStore
from paceline.parameters.keyed import KeyedStore
from paceline.parameters.layout import DenseLayout, TableLayout
from paceline.parameters.scratch import Scratch

OF_TABLE = {"number keys": "find its distinct keys", "gather": "get their parameters"}
GRADIENT = {"gradient": "score the rows and sum their gradients"}
APPLY = {"apply": "update the parameters of its keys"}
APPLY_DENSE = {"apply dense": "update the parameters that all rows share"}


class StepParts:
    """Steps of a model over batches, with parameters of its size."""

    def __init__(self, model: Model, rows: int) -> None:
        table, dense = model.layout.table, model.layout.dense
        self._compute = model.compute()
        self._table = None if table is None else _Table(table)
        self._dense = None if dense is None else _Dense(dense, model)
        of_table, apply = (OF_TABLE, APPLY) if table is not None else ({}, {})
        self.what = of_table | GRADIENT | apply | (APPLY_DENSE if dense is not None else {})

    def step(self, batch: Any) -> Iterator[str]:
        step = Step(batch)
        if self._table is not None:
            self._table.number(batch)
            yield "number keys"
            step = self._table.gather(step)
            yield "gather"
        if self._dense is not None:
            step = step._replace(dense=self._dense.store.values, dense_sums=self._dense.sums)
        self._compute.gradient(step)
        yield "gradient"
        if self._table is not None:
            self._table.store.apply(self._table.distinct, step.sums, batch.num_rows, 0)
            yield "apply"
        if self._dense is not None:
            self._dense.store.apply(0, self._dense.sums, batch.num_rows, 0)
            yield "apply dense"


class _Table:
    """A table, and the memory of steps over its keys."""

    def __init__(self, layout: TableLayout) -> None:
        self.store, self._scratch = KeyedStore(layout), Scratch(layout)

    def number(self, batch: Any) -> None:
        room = self._scratch.room_for(batch.num_nonzeros)
        count = number_keys(
            batch.keys, self._scratch.bias, room.slots, room.direct, room.turn, room.distinct, room.local
        )
        self.distinct = room.distinct[:count]

    def gather(self, step: Step) -> Step:
        room, size = self._scratch.buffers, len(self.distinct) * self.store.dim
        self.store.gather(self.distinct, room.weights[:size])
        return step._replace(local=room.local, weights=room.weights[:size], sums=room.sums[:size])


class _Dense:
    """Dense values as a model begins with them, and their gradient."""

    def __init__(self, layout: DenseLayout, model: Model) -> None:
        self.store = DenseStore(layout)
        self.store.begin(model.initial())
        self.sums = np.zeros(self.store.size, np.float32)
