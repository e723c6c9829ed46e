"""Field-weighted factorization machines: the table of a factorization machine, and a weight for each pair of fields.

The weights of pairs take part in every row, so they are dense values. They begin as 1, which makes the model a
factorization machine at first. The run's optimizer trains them too. If it trains only tables, as FTRL does, AdaGrad
trains them, without penalties: those of FTRL are of another size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.data.sparse.batch import Batch
from paceline.kernels.field_weighted import FieldWeighted, gradient, score
from paceline.kernels.tables import gather
from paceline.kernels.vectors import lanes
from paceline.models.factorization import layout_of, save_table
from paceline.models.linear import OnLabels, on_labels, with_loss
from paceline.models.loss_entries import LOSSES
from paceline.models.losses import Scales, rule_of
from paceline.models.model import Compute, Floats, Parameters, Step, lay_out
from paceline.models.registry import Entry
from paceline.models.sparse import LossOutput
from paceline.parameters.layout import DenseLayout, Layout
from paceline.parameters.optimizers import OPTIMIZERS
from paceline.settings import OptimizerConfig, RunConfig

FIELD_WEIGHTS = "field_weights"


class FieldWeightedModel:
    """A field-weighted factorization machine in a run."""

    make_kernel = train_rows = None
    curvature: float | None = None
    loops_on_gpu = ""
    scoring_threads = knows_start = True
    fingerprint = ""

    def __init__(self, labels: OnLabels, features: int, fields: tuple[str, ...], epoch_rows: int,
                 rows_per_update: int) -> None:  # fmt: skip
        count, config = len(fields), labels.config
        self._fields = fields
        self._labels = labels
        self._dim = config.factors.dim
        self.start_loss = labels.start_loss
        self.label_units = labels.units
        self.tensors = lay_out([(FIELD_WEIGHTS, (count, count), "float32")])
        sizes, optimizer = (count * count, count * count), _optimizer_of(config.optimizer, labels.scales)
        before = config.start.rows, config.start.updates
        dense = DenseLayout(*sizes, optimizer, epoch_rows, rows_per_update, *before)
        self.layout = Layout(layout_of(labels, features), dense)
        self.output = LossOutput(LOSSES[config.loss.name].task, rule_of(config.loss))

    def initial(self) -> Floats:
        return np.ones(len(self._fields) ** 2, np.float32)

    def make_memory(self) -> FieldWeighted:
        """The model as compiled loops take it, with memory of its own."""
        return FieldWeighted.make(self._labels.rule, lanes(self._dim), len(self._fields))

    def compute(self) -> Compute:
        return FieldWeightedCompute(self.make_memory())

    def scores(self, parameters: Parameters, rows: Batch) -> Floats:
        view = parameters.table
        assert view is not None
        features, dim = view.layout.features, view.layout.dim
        known = rows.keys < features
        distinct, numbers = np.unique(rows.keys[known], return_inverse=True)
        offsets = np.concatenate([[0], np.cumsum(known)])[rows.offsets]
        weights, bias = np.empty(len(distinct) * dim, np.float32), np.empty(dim, np.float32)
        gather(*view.rules, view.rows, features, distinct.astype(rows.keys.dtype), weights)
        gather(*view.rules, view.rows, features, np.array([features], rows.keys.dtype), bias)
        out = np.empty(rows.num_rows, np.float32)
        assert rows.fields is not None
        score(self.make_memory(), offsets, numbers.astype(np.uint32), rows.values[known], rows.fields[known], weights,
              bias[0], np.ascontiguousarray(parameters.dense), out)  # fmt: skip
        return out

    def save(self, parameters: Parameters) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        assert parameters.table is not None
        found, said = save_table(parameters.table, (self._dim,), self._fields, self._labels.config.loss)
        return found | {FIELD_WEIGHTS: self.tensors[0].of(parameters.dense)}, said


class FieldWeightedCompute:
    """One worker's part, with its memory."""

    use_threads = None
    filled: Callable[[int], None] | None = None
    holds_values = False

    def __init__(self, kernel: FieldWeighted) -> None:
        self._kernel = kernel

    def gradient(self, step: Step) -> float:
        rows = step.rows
        return gradient(self._kernel, rows.offsets, step.local, rows.values, rows.labels, rows.weights, rows.fields,
                        step.weights, step.dense, step.sums, step.dense_sums)  # fmt: skip


def _optimizer_of(run: OptimizerConfig, scales: Scales) -> OptimizerConfig:
    """How the weights of pairs change. They have no unit; steps of SGD have that of gradients, which is taken out."""
    if not OPTIMIZERS[run.name].keeps_weights:
        run = msgspec.structs.replace(run, name="adagrad", l1=0.0, l2=0.0, own={})
    unit = 1.0 if OPTIMIZERS[run.name].scale_free else 1 / (scales.slope * scales.score)
    return msgspec.structs.replace(run, learning_rate=run.learning_rate * unit)


def build(entry: Entry, config: RunConfig, dataset: Any, rows_per_update: int) -> FieldWeightedModel:
    """The field-weighted factorization machine of a run on this dataset."""
    rows = dataset.split("train").rows
    labels = on_labels(entry, config, dataset)
    return FieldWeightedModel(labels, dataset.features, dataset.manifest.fields, rows, rows_per_update)


def build_for(config: RunConfig, features: int, fields: tuple[str, ...]) -> FieldWeightedModel:
    """The field-weighted factorization machine over this many features, to score with."""
    return FieldWeightedModel(OnLabels(with_loss(config)), features, fields, 1, 1)
