"""Linear models over sparse rows: z = w·x + b, under a loss.

The table has one column, the weight. The bias b is the weight of one more key, numbered `features`, that every row has
with value 1. `logistic` is the linear model under the logistic loss: p(click) = σ(z).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.data.sparse.batch import Batch
from paceline.kernels.linear import Linear, gradient, score, train_rows
from paceline.kernels.losses import curvature
from paceline.models.losses import LOSSES
from paceline.models.model import Compute, Floats, Parameters, Step, Tensor
from paceline.models.registry import TASK_OF_LOSS, Entry
from paceline.models.sparse import Columns, LossOutput, table_layout
from paceline.parameters.layout import Layout, TableLayout
from paceline.settings import RunConfig


class LinearModel:
    """A linear model in a run. It needs no memory to work in, so all workers share it."""

    use_threads = None
    filled: Callable[[int], None] | None = None
    holds_values = False
    tensors: tuple[Tensor, ...] = ()
    fingerprint = ""
    scoring_threads = True

    def __init__(self, table: TableLayout, loss: str) -> None:
        self.layout = Layout(table)
        self.kernel = Linear(LOSSES[loss])
        self.train_rows = train_rows
        self.curvature: float | None = float(curvature(LOSSES[loss]))
        self.output = LossOutput(TASK_OF_LOSS[loss], LOSSES[loss])

    def initial(self) -> Floats:
        return np.zeros(0, np.float32)

    def compute(self) -> Compute:
        return self

    def gradient(self, step: Step) -> float:
        rows = step.rows
        return gradient(self.kernel, rows.offsets, step.local, rows.values, rows.labels, step.weights, step.sums)

    def scores(self, parameters: Parameters, rows: Batch) -> Floats:
        view = parameters.table
        assert view is not None
        out, layout = np.empty(rows.num_rows, np.float32), view.layout
        score(*view.rules, view.rows, layout.features, layout.features, rows.offsets, rows.keys, rows.values, out)
        return out

    def save(self, parameters: Parameters) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        view = parameters.table
        assert view is not None
        return {"weight": view.rows[:-1], "bias": view.rows[-1:]}, {"features": view.layout.features}


def build(entry: Entry, config: RunConfig, dataset: Any, rows_per_update: int) -> LinearModel:
    """The linear model of a run on this dataset."""
    return build_for(config, dataset.features)


def build_for(config: RunConfig, features: int) -> LinearModel:
    """The linear model over this many features."""
    return LinearModel(table_layout((Columns("weight", 1),), config, features, bias=True), "logistic")
