"""The operations of a linear model's gradient step, one by one, for `paceline diagnose --ops`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from paceline.data.sparse.batch import Batch
from paceline.imports import import_from
from paceline.kernels.losses import measure_rows
from paceline.kernels.numbering import number_keys
from paceline.kernels.operations import scatter_rows, score_rows
from paceline.models.linear import LinearModel
from paceline.models.model import StepOperations
from paceline.models.multinomial import MultinomialModel
from paceline.parameters.keyed import KeyedStore
from paceline.parameters.scratch import Scratch

OPERATIONS = {
    "number keys": "find its distinct keys",
    "gather": "get their weights",
    "score": "sum weights times values",
    "sigmoid": "turn scores into slopes and losses",
    "scatter": "sum the rows' gradients by key",
    "apply": "update the weights",
}


def make(model: LinearModel | MultinomialModel, rows: int) -> StepOperations:
    """The operations that a linear model declares."""
    operations: StepOperations = import_from(model.operations)(model, rows)
    return operations


class LinearOperations:
    """Steps of a linear model over batches of `rows` rows, with a table of its size."""

    def __init__(self, model: LinearModel, rows: int) -> None:
        table = model.layout.table
        assert table is not None
        self.what = OPERATIONS
        self._loss = model.make_kernel().loss
        self._store, self._scratch = KeyedStore(table), Scratch(table)
        self._scores, self._slopes = np.zeros(rows, np.float32), np.zeros(rows, np.float32)

    def step(self, batch: Batch) -> Iterator[str]:
        store, scores, slopes = self._store, self._scores, self._slopes
        room, bias = self._scratch.room_for(batch.num_nonzeros), self._scratch.bias
        count = number_keys(batch.keys, bias, room.slots, room.direct, room.turn, room.distinct, room.local)
        yield "number keys"
        weights, sums, distinct = room.weights[:count], room.sums[:count], room.distinct[:count]
        store.gather(distinct, weights)
        yield "gather"
        score_rows(batch.offsets, room.local, batch.values, weights, scores)
        yield "score"
        measure_rows(self._loss, scores, batch.labels, batch.weights, slopes)
        yield "sigmoid"
        scatter_rows(batch.offsets, room.local, batch.values, slopes, sums)
        yield "scatter"
        store.apply(distinct, sums, len(scores), 0)
        yield "apply"
