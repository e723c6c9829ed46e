"""Models over sparse rows: how a batch's keys become numbers, and how a user declares a model of their own.

    from paceline.models.sparse import Columns, Initial, SparseModel, sparse_model

    @sparse_model(loss="squared")
    def build(features: int) -> SparseModel:
        return SparseModel(
            columns=(Columns("factors", 3, Initial("normal", 0.1)),),
            tensors={"mix": np.ones(3)},
            score=score,
            gradient=gradient,
        )

`score(rows, table, tensors)` returns the score of each row, from the values [numbers, dim] of the batch's distinct keys
and the tensors by name. `gradient(rows, table, tensors, slopes, table_sums, tensor_sums)` adds to the sums what each
row's slope, the derivative of its loss by its score, contributes. `rows` is a `NumberedRows`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.data.sparse.batch import Batch
from paceline.errors import ConfigError
from paceline.imports import explained, import_from
from paceline.kernels.losses import measure_rows
from paceline.kernels.tables import gather
from paceline.models.label_statistics import first_labels
from paceline.models.loss_entries import LOSSES, LOSSES_OF_ONE_SCORE
from paceline.models.losses import LabelUnits, best_score, constant_loss, predictions, rule_of, total_loss
from paceline.models.metrics import LossFunctions, MetricSums
from paceline.models.model import Compute, Floats, Parameters, Step, Tensor, lay_out, size_of, values_of
from paceline.models.registry import Entry
from paceline.models.tasks import Task
from paceline.parameters.layout import INITIAL_KINDS, DenseLayout, Group, Layout, TableLayout
from paceline.parameters.layout import Initial as Initial
from paceline.parameters.optimizers import OPTIMIZERS, TABLE_OPTIMIZERS
from paceline.settings import LossConfig, OptimizerConfig, RunConfig


class Columns(NamedTuple):
    """Some columns of a model's table: their name, how many, how they begin, and how they change.

    The run's settings apply to what is left out: the optimizer's name, its learning rate and L2.
    """

    name: str
    dim: int
    initial: Initial = Initial()
    optimizer: str = ""
    learning_rate: float | None = None
    l2: float | None = None

    def optimizer_in(self, run: OptimizerConfig) -> OptimizerConfig:
        """How these columns change in a run with this optimizer."""
        own = {"name": self.optimizer or run.name, "learning_rate": self.learning_rate, "l2": self.l2}
        return msgspec.structs.replace(run, **{name: value for name, value in own.items() if value is not None})


class NumberedRows(NamedTuple):
    """Sparse rows whose keys are numbers of a batch: row i has `numbers` and `values` from `offsets[i]` on."""

    offsets: NDArray[np.int64]
    numbers: NDArray[np.uint32]
    values: Floats

    @property
    def row_of(self) -> NDArray[np.int64]:
        """The row that each nonzero belongs to."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


Score = Callable[[NumberedRows, Floats, dict[str, Floats]], NDArray[Any]]
Gradient = Callable[[NumberedRows, Floats, dict[str, Floats], Floats, Floats, dict[str, Floats]], None]


class SparseModel(NamedTuple):
    """A model over sparse rows as a user declares it."""

    columns: tuple[Columns, ...]
    score: Score
    gradient: Gradient
    tensors: Mapping[str, Any] = {}


class Declaration(NamedTuple):
    """What `sparse_model` declares about a function before it is called."""

    loss: str
    optimizers: tuple[str, ...]


def sparse_model(
    loss: str = "logistic", optimizers: tuple[str, ...] = ("sgd", "adagrad")
) -> Callable[[Callable[..., SparseModel]], Callable[..., SparseModel]]:
    """Declare that a function builds a `SparseModel`, to be trained with this loss by one of these optimizers."""
    if loss not in LOSSES_OF_ONE_SCORE:
        raise ConfigError(f"`loss` is `{loss}`; it is one of {', '.join(LOSSES_OF_ONE_SCORE)}", "loss='squared'")
    if not set(optimizers) <= set(TABLE_OPTIMIZERS):
        raise ConfigError(
            f"`optimizers` is {optimizers}; tables are trained by {', '.join(TABLE_OPTIMIZERS)}", "optimizers=('sgd',)"
        )

    def declare(build: Callable[..., SparseModel]) -> Callable[..., SparseModel]:
        setattr(build, "declares", Declaration(loss, optimizers))  # noqa: B010 (functions have no such attribute)
        return build

    return declare


class DeclaredModel:
    """A user's `SparseModel` in a run. It needs no memory to work in, so all workers share it."""

    make_kernel = train_rows = use_threads = None
    curvature: float | None = None
    loops_on_gpu = ""
    filled: Callable[[int], None] | None = None
    holds_values = knows_start = False
    scoring_threads = True
    label_units = LabelUnits()

    def __init__(self, declared: SparseModel, tensors: tuple[Tensor, ...], loss: LossConfig, table: TableLayout,
                 dense: DenseLayout, start_loss: float) -> None:  # fmt: skip
        self._declared = declared
        self.start_loss = start_loss
        self._loss = rule_of(loss)
        self.output = LossOutput(LOSSES[loss.name].task, self._loss)
        self._table = table
        self.layout = Layout(table, dense if tensors else None)
        self.tensors = tensors
        digest = hashlib.sha256(repr((declared.columns, self.tensors)).encode()).hexdigest()[:8]
        self.fingerprint = f"{len(self.tensors)} tensors and a table of {self._table.num_keys:,} keys ({digest})"

    def initial(self) -> Floats:
        return values_of(self.tensors, self._declared.tensors)

    def compute(self) -> Compute:
        return self

    def gradient(self, step: Step) -> float:
        rows: Batch = step.rows
        numbered = NumberedRows(rows.offsets - rows.offsets[0], step.local[: rows.num_nonzeros], rows.values)
        table, sums = step.weights.reshape(-1, self._table.dim), step.sums.reshape(-1, self._table.dim)
        tensors = _by_name(self.tensors, step.dense)
        step.sums[:] = 0
        if self.tensors:
            step.dense_sums[:] = 0
        if not rows.num_rows:
            return 0.0
        scores = _scores(self._declared, numbered, table, tensors)
        slopes = np.empty_like(scores)
        losses = measure_rows(self._loss, scores, rows.labels, rows.weights, slopes)
        into = _by_name(self.tensors, step.dense_sums)
        with _explained("gradient"):
            self._declared.gradient(numbered, table, tensors, slopes, sums, into)
        return losses

    def scores(self, parameters: Parameters, rows: Batch) -> Floats:
        view = parameters.table
        assert view is not None
        # The features of the view: those of a larger dataset are in an order of their own.
        known = rows.keys < view.layout.features
        distinct, numbers = np.unique(rows.keys[known], return_inverse=True)
        offsets = np.concatenate([[0], np.cumsum(known)])[rows.offsets]
        values = np.empty(len(distinct) * self._table.dim, np.float32)
        gather(*view.rules, view.rows, self._table.bias_key, distinct.astype(rows.keys.dtype), values)
        numbered = NumberedRows(offsets, numbers.astype(np.uint32), rows.values[known])
        table = values.reshape(-1, self._table.dim)
        return _scores(self._declared, numbered, table, _by_name(self.tensors, parameters.dense))

    def save(self, parameters: Parameters) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        view = parameters.table
        assert view is not None
        table, groups = view.rows.reshape(-1, self._table.dim), self._table.groups
        parts = np.split(table, np.cumsum([group.dim for group in groups])[:-1], axis=1)
        named = zip(groups, parts, strict=True)
        found = {f"table.{group.name}": np.ascontiguousarray(part) for group, part in named}
        return found | _by_name(self.tensors, parameters.dense), {"features": self._table.features}


class LossOutput(NamedTuple):
    """What scores mean under a loss: one probability, or one prediction, per row."""

    task: Task
    loss: Any
    num_classes: int = 0

    def metric_sums(self) -> MetricSums:
        of_loss = LossFunctions(partial(total_loss, self.loss), self.probabilities, partial(best_score, self.loss))
        sums: MetricSums = import_from(self.task.sums)(of_loss)
        return sums

    def probabilities(self, scores: Floats) -> Floats:
        return predictions(self.loss, scores)

    def predict(self, scores: Floats) -> dict[str, NDArray[Any]]:
        return {self.task.column: predictions(self.loss, scores)}


def table_layout(columns: tuple[Columns, ...], config: RunConfig, features: int, bias: bool,
                 start: float = 0.0) -> TableLayout:  # fmt: skip
    """The layout of a table with these columns, whose bias begins as `start`."""
    groups = tuple(Group(one.name, one.dim, one.optimizer_in(config.optimizer), one.initial) for one in columns)
    return TableLayout(features, groups, bias, config.seed, start, config.start.rows)


def build(entry: Entry, config: RunConfig, dataset: Any, rows_per_update: int) -> DeclaredModel:
    """The model that a user's function declares, for a run on this dataset."""
    labels, weights = first_labels(dataset)
    rule = rule_of(msgspec.structs.replace(config.loss, name=entry.losses[0]))
    start = constant_loss(rule, 0.0, labels, weights)
    return build_for(entry, config, dataset.features, dataset.split("train").rows, rows_per_update, start)


def build_for(entry: Entry, config: RunConfig, features: int, epoch_rows: int, rows_per_update: int,
              start_loss: float = 0.0) -> DeclaredModel:  # fmt: skip
    """The model that a user's function declares, for this many features."""
    with _explained(entry.name):
        declared: SparseModel = entry.function(features)
    _check(declared, entry.name, config)
    table = table_layout(declared.columns, config, features, bias=False)
    tensors = lay_out((name, np.shape(values), "float32") for name, values in declared.tensors.items())
    size = size_of(tensors)
    before = config.start.rows, config.start.updates
    dense = DenseLayout(size, size, config.optimizer, epoch_rows, rows_per_update, *before)
    loss = msgspec.structs.replace(config.loss, name=entry.function.declares.loss)
    return DeclaredModel(declared, tensors, loss, table, dense, start_loss)


def _check(declared: SparseModel, name: str, config: RunConfig) -> None:
    """Refuse what compiled loops do not check."""
    if not isinstance(declared, SparseModel) or not declared.columns:
        raise ConfigError(f"`{name}` returned {declared!r}, expected a SparseModel with columns", "see `sparse_model`")
    for column in declared.columns:
        if column.dim < 1 or column.initial.kind not in INITIAL_KINDS:
            raise ConfigError(
                f"`{name}` has {column}; `dim` is at least 1, and values begin as {', '.join(INITIAL_KINDS)}",
                f"Columns('{column.name}', 8, Initial('normal', 0.1))",
            )
        optimizer = column.optimizer_in(config.optimizer)
        if optimizer.name not in TABLE_OPTIMIZERS or not (optimizer.learning_rate > 0 and optimizer.l2 >= 0):
            raise ConfigError(
                f"`{name}` has {column}; tables are trained by {', '.join(TABLE_OPTIMIZERS)}, rates are positive, and "
                "`l2` is not negative",
                f"Columns('{column.name}', {column.dim}, optimizer='adagrad', learning_rate=0.05, l2=0.0)",
            )
        if not OPTIMIZERS[optimizer.name].keeps_weights and column.initial.kind != "zeros":
            raise ConfigError(
                f"`optimizer` is `{optimizer.name}`, which trains only columns that begin as zeros; "
                f"those of `{column.name}` of `{name}` are random",
                "--optimizer adagrad, or one of their own in Columns",
            )
    if not OPTIMIZERS[config.optimizer.name].keeps_weights and declared.tensors:
        raise ConfigError(
            f"`optimizer` is `{config.optimizer.name}`, which trains only tables; `{name}` has tensors",
            "--optimizer adagrad",
        )


def _scores(declared: SparseModel, rows: NumberedRows, table: Floats, tensors: dict[str, Floats]) -> Floats:
    """The scores of rows by a user's function, which must be one number per row."""
    with _explained("score"):
        scores = np.ascontiguousarray(declared.score(rows, table, tensors), np.float32)
    if scores.shape != (len(rows.offsets) - 1,):
        raise ConfigError(
            f"`score` returned shape {scores.shape} for {len(rows.offsets) - 1} rows", "return one number per row"
        )
    return scores


def _explained(name: str) -> AbstractContextManager[None]:
    """Say which of a user's functions failed, and how."""
    return explained(f"`{name}` of the model fails", "call it on a few rows by hand")


def _by_name(tensors: tuple[Tensor, ...], values: Floats) -> dict[str, Floats]:
    return {tensor.name: tensor.of(values) for tensor in tensors}
