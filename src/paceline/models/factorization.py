"""Factorization machines over sparse rows: a weight per key, and factors for what two keys have together.

`fm` has some factors per key (`kernels/factorization.py`), `ffm` as many again for each field that a key may meet
(`kernels/field_aware.py`), and `fwfm` those of `fm` with a weight for each pair of fields
(`kernels/field_weighted.py`, `models/field_weighted.py`).

The table has two groups of columns, the weight and the factors, with an optimizer each. The bias is the weight of one
more key, numbered `features`, whose factors stay 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.data.sparse.batch import Batch
from paceline.errors import ConfigError
from paceline.kernels import factorization, field_aware
from paceline.kernels.losses import curvature
from paceline.kernels.row_loop import train_rows
from paceline.kernels.vectors import lanes
from paceline.models.linear import OnLabels, on_labels, scaled, with_loss
from paceline.models.loss_entries import LOSSES
from paceline.models.losses import Scales, rule_of
from paceline.models.model import Compute, Floats, Parameters, Step, Tensor
from paceline.models.registry import Entry
from paceline.models.sparse import LossOutput
from paceline.parameters.layout import Group, Initial, Layout, TableLayout
from paceline.parameters.optimizers import OPTIMIZERS
from paceline.settings import FactorsConfig, LossConfig, OptimizerConfig, RunConfig

# Of one key: beyond that, a key would have more factors than anyone has memory for.
MOST_FACTORS = 4096


class Form(NamedTuple):
    """What is different about one kind of factorization machine: its compiled loops, and the shape of a key's factors.

    `score(kernel, groups, bias_groups, table, features, rows, out)` writes the scores of a batch to `out`.
    `loops_on_gpu` are its kernels, if it has any (`models/model.py`).
    """

    make_kernel: Callable[[], Any]
    gradient: Any
    score: Callable[..., None]
    shape: tuple[int, ...]
    loops_on_gpu: str = ""


class FactorizationModel:
    """A factorization machine in a run."""

    use_threads = None
    filled: Callable[[int], None] | None = None
    holds_values = False
    tensors: tuple[Tensor, ...] = ()
    fingerprint = ""
    scoring_threads = knows_start = True

    def __init__(self, form: Form, table: TableLayout, fields: tuple[str, ...], labels: OnLabels) -> None:
        self._form = form
        self._fields = fields
        self._loss = labels.config.loss
        self.layout = Layout(table)
        self.make_kernel = form.make_kernel
        self.train_rows = train_rows
        self.loops_on_gpu = form.loops_on_gpu
        self.start_loss = labels.start_loss
        self.label_units = labels.units
        self.curvature: float | None = float(curvature(labels.rule)) * labels.scales.slope / labels.scales.score
        self.output = LossOutput(LOSSES[self._loss.name].task, rule_of(self._loss))

    def initial(self) -> Floats:
        return np.zeros(0, np.float32)

    def compute(self) -> Compute:
        return self

    def gradient(self, step: Step) -> float:
        rows = step.rows
        losses: float = self._form.gradient(
            self.make_kernel(), rows.offsets, step.local, rows.values, rows.labels, rows.weights, rows.fields,
            step.weights, step.sums,
        )  # fmt: skip
        return losses

    def scores(self, parameters: Parameters, rows: Batch) -> Floats:
        view = parameters.table
        assert view is not None
        out = np.empty(rows.num_rows, np.float32)
        self._form.score(self.make_kernel(), *view.rules, view.rows, view.layout.features, rows, out)
        return out

    def save(self, parameters: Parameters) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        assert parameters.table is not None
        return save_table(parameters.table, self._form.shape, self._fields, self._loss)


def save_table(
    view: Any, shape: tuple[int, ...], fields: tuple[str, ...], loss: LossConfig
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """The tensors of weights, bias and factors, and what `model.json` says about them."""
    rows, features = view.rows.reshape(view.layout.num_keys, view.layout.dim), view.layout.features
    found = {"weight": rows[:-1, 0], "bias": rows[-1, :1], "factors": rows[:-1, 1:].reshape(features, *shape)}
    said = {"features": features, "dim": shape[-1], "fields": fields, "loss": msgspec.to_builtins(loss)}
    return {name: np.ascontiguousarray(tensor) for name, tensor in found.items()}, said


def table_of(tensors: dict[str, NDArray[Any]]) -> Floats:
    """The rows of a table, flat, from the tensors of its weights, bias and factors."""
    factors = tensors["factors"].reshape(len(tensors["weight"]), -1)
    rows = np.zeros((len(factors) + 1, 1 + factors.shape[1]), np.float32)
    rows[:-1, 0], rows[-1, :1], rows[:-1, 1:] = tensors["weight"], tensors["bias"], factors
    return rows.reshape(-1)


def build(entry: Entry, config: RunConfig, dataset: Any, rows_per_update: int) -> FactorizationModel:
    """The factorization machine of a run on this dataset."""
    return build_on(on_labels(entry, config, dataset), dataset.features)


def build_field_aware(entry: Entry, config: RunConfig, dataset: Any, rows_per_update: int) -> FactorizationModel:
    """The field-aware factorization machine of a run on this dataset."""
    return _field_aware(on_labels(entry, config, dataset), dataset.features, dataset.manifest.fields)


def build_for(config: RunConfig, features: int, fields: tuple[str, ...]) -> FactorizationModel:
    """The factorization machine over this many features, without data. It makes nothing of fields."""
    return build_on(OnLabels(with_loss(config)), features)


def build_field_aware_for(config: RunConfig, features: int, fields: tuple[str, ...]) -> FactorizationModel:
    """The field-aware factorization machine over this many features, without data, for keys of these fields."""
    return _field_aware(OnLabels(with_loss(config)), features, fields)


def build_on(labels: OnLabels, features: int) -> FactorizationModel:
    """The factorization machine over this many features, without fields, for such labels."""
    dim = labels.config.factors.dim
    kernel = factorization.FactorizationMachine(labels.rule, lanes(dim))

    def score(kernel: Any, groups: Any, bias: Any, table: Floats, features: int, rows: Batch, out: Floats) -> None:
        factorization.score(
            kernel, groups, bias, table, features, rows.offsets, rows.keys, rows.values, out
        )  # fmt: skip

    form = Form(
        lambda: kernel, factorization.gradient, score, (dim,), "paceline.torch.sparse.factorization:FactorizationLoops"
    )
    return FactorizationModel(form, layout_of(labels, features), (), labels)


def _field_aware(labels: OnLabels, features: int, fields: tuple[str, ...]) -> FactorizationModel:
    dim, count = labels.config.factors.dim, len(fields)
    if dim * count > MOST_FACTORS:
        raise ConfigError(
            f"{count} fields with {dim} factors each are {dim * count:,} per key; the limit is {MOST_FACTORS:,}",
            f"--dim {MOST_FACTORS // count}" if count <= MOST_FACTORS else "--model fm, or data with fewer fields",
        )

    def make_kernel() -> field_aware.FieldAware:
        crossed = np.zeros(count * count * dim, np.float32)
        return field_aware.FieldAware(labels.rule, lanes(dim), count, crossed)

    def score(kernel: Any, groups: Any, bias: Any, table: Floats, features: int, rows: Batch, out: Floats) -> None:
        assert rows.fields is not None
        field_aware.score(
            kernel, groups, bias, table, features, rows.offsets, rows.keys, rows.values, rows.fields, out
        )  # fmt: skip

    form = Form(make_kernel, field_aware.gradient, score, (count, dim))
    return FactorizationModel(form, layout_of(labels, features, count), fields, labels)


def layout_of(labels: OnLabels, features: int, blocks: int = 1) -> TableLayout:
    """A weight per key, and `blocks` times the factors, whose products are in units of scores."""
    config, scales = scaled(labels.config, labels.scales), labels.scales
    factors = config.factors
    initial = Initial("normal", factors.initial * scales.score**0.5)
    optimizer = _optimizer_of(factors, config.optimizer, scales)
    groups = (
        Group("weight", 1, config.optimizer), Group("factors", factors.dim * blocks, optimizer, initial, blocks)
    )  # fmt: skip
    return TableLayout(features, groups, True, config.seed, scales.start, config.start.rows)


def _optimizer_of(factors: FactorsConfig, run: OptimizerConfig, scales: Scales) -> OptimizerConfig:
    """How factors change. If the rate of the run decays, so does theirs."""
    unit = scales.score**0.5 if OPTIMIZERS[factors.optimizer].scale_free else 1 / scales.slope
    own = {"row_wise": 1.0} if factors.optimizer == "adagrad" and factors.row_wise else {}
    return msgspec.structs.replace(
        run, name=factors.optimizer, learning_rate=factors.learning_rate * unit, l1=0.0, l2=factors.l2, own=own
    )
