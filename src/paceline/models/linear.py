"""Linear models over sparse rows: z = w·x + b, under a loss.

The table has one column, the weight. The bias b is the weight of one more key, numbered `features`, that every row has
with value 1. Under the softmax loss a row has one such score per class (`multinomial.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.data.labels import Labels
from paceline.data.sparse.batch import Batch
from paceline.errors import DataError
from paceline.imports import import_from
from paceline.kernels.linear import Linear, gradient, score
from paceline.kernels.losses import curvature
from paceline.kernels.row_loop import train_rows
from paceline.models.label_statistics import class_weights, first_labels, refuse_below
from paceline.models.loss_entries import LOSSES
from paceline.models.losses import PLAIN, LabelUnits, Scales, constant_loss, rule_of, rule_to_train, scales_of
from paceline.models.model import Compute, Floats, Model, Parameters, Step, Tensor
from paceline.models.registry import Entry
from paceline.models.sparse import Columns, LossOutput, table_layout
from paceline.parameters.layout import Layout
from paceline.parameters.optimizers import OPTIMIZERS
from paceline.settings import LossConfig, RunConfig, Start


class LinearModel:
    """A linear model in a run. It needs no memory to work in, so all workers share it."""

    use_threads = None
    filled: Callable[[int], None] | None = None
    holds_values = False
    tensors: tuple[Tensor, ...] = ()
    fingerprint = ""
    scoring_threads = knows_start = True
    operations = "paceline.models.linear_operations:LinearOperations"
    loops_on_gpu = "paceline.torch.sparse.linear:LinearLoops"

    def __init__(self, config: RunConfig, features: int, labels: Labels, scales: Scales = PLAIN,
                 weights: Floats | None = None, start_loss: float = 0.0) -> None:  # fmt: skip
        """`weights` are those of the classes 0 and 1 in training."""
        plain = rule_of(config.loss)
        trained = rule_to_train(config.loss, scales, weights)
        self._said = {"features": features, "loss": msgspec.to_builtins(config.loss)}
        self._kernel = Linear(trained)
        table = table_layout((Columns("weight", 1),), scaled(config, scales), features, bias=True, start=scales.start)
        self.layout = Layout(table)
        self.train_rows = train_rows
        self.start_loss = start_loss
        self.label_units = LabelUnits(scales, weights)
        self.curvature: float | None = float(curvature(trained)) * scales.slope / scales.score
        self.output = LossOutput(LOSSES[config.loss.name].task, plain)
        self.shapes = {"weight": (features,), "bias": (1,)}

    def make_kernel(self) -> Linear:
        return self._kernel

    def initial(self) -> Floats:
        return np.zeros(0, np.float32)

    def compute(self) -> Compute:
        return self

    def gradient(self, step: Step) -> float:
        rows = step.rows
        return gradient(
            self._kernel, rows.offsets, step.local, rows.values, rows.labels, rows.weights, rows.fields, step.weights,
            step.sums,
        )  # fmt: skip

    def scores(self, parameters: Parameters, rows: Batch) -> Floats:
        view = parameters.table
        assert view is not None
        out, layout = np.empty(rows.num_rows, np.float32), view.layout
        score(*view.rules, view.rows, layout.features, layout.features, rows.offsets, rows.keys, rows.values, out)
        return out

    def save(self, parameters: Parameters) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        view = parameters.table
        assert view is not None
        return {"weight": view.rows[:-1], "bias": view.rows[-1:]}, self._said


def scaled(config: RunConfig, scales: Scales) -> RunConfig:
    """The same settings with a learning rate that suits labels of any size (decision 0028).

    Steps of AdaGrad and FTRL are as large as the rate says, which is therefore in units of scores. Those of SGD are
    also as large as slopes.
    """
    optimizer = config.optimizer
    unit = scales.score if OPTIMIZERS[optimizer.name].scale_free else scales.score / scales.slope
    rate = optimizer.learning_rate * unit
    return msgspec.structs.replace(config, optimizer=msgspec.structs.replace(optimizer, learning_rate=rate))


def build(entry: Entry, config: RunConfig, dataset: Any, rows_per_update: int) -> Model:
    """The linear model of a run on this dataset."""
    config, *others = on_labels(entry, config, dataset)
    model: Model = make_for(config, dataset.features, dataset.labels, *others)
    return model


def build_for(config: RunConfig, features: int, labels: Labels | None = None) -> Any:
    """The linear model over this many features, without data; without labels, they are two classes."""
    return make_for(with_loss(config), features, labels or Labels())


class OnLabels(NamedTuple):
    """What depends on the labels of a run's data: its settings with a loss, how large scores are, the weights of the
    classes 0 and 1, if they differ, and the loss that training begins with.
    """

    config: RunConfig
    scales: Scales = PLAIN
    weights: Floats | None = None
    start_loss: float = 0.0

    @property
    def rule(self) -> Any:
        """The loss to train with."""
        return rule_to_train(self.config.loss, self.scales, self.weights)

    @property
    def units(self) -> LabelUnits:
        """What a model takes from the labels."""
        return LabelUnits(self.scales, self.weights)


def on_labels(entry: Entry, config: RunConfig, dataset: Any) -> OnLabels:
    """What the labels of a dataset mean for a run; `ConfigError` if its loss is not for them.

    A run that starts from a model keeps what that model took from its first data.
    """
    name = entry.loss_for(config.loss.name, dataset.labels.kind)
    config = msgspec.structs.replace(config, loss=msgspec.structs.replace(config.loss, name=name))
    known = config.start
    if config.start_from:
        _check_start(known, dataset.labels)
        weights = np.array(known.class_weights, np.float32) if known.class_weights else None
    else:
        weights = class_weights(dataset) if config.loss.class_weight else None
    scales, start = PLAIN, LOSSES[name].loss_of_nothing
    if LOSSES[name].for_numbers:
        rule, (labels, row_weights) = rule_of(config.loss), first_labels(dataset)
        refuse_below(LOSSES[name].least_label, dataset, name)
        scales = scales_of(rule, labels, row_weights) if known.scales is None else Scales(*known.scales)
        start = constant_loss(rule, scales.start, labels, row_weights)
    return OnLabels(config, scales, weights, start)


def _check_start(start: Start, labels: Labels) -> None:
    """Raise unless what a model's file says of its first labels can be: no checksum covers it, and loops trust it."""
    with np.errstate(over="ignore"):
        weights, scales = np.array(start.class_weights, np.float32), np.array(start.scales or (), np.float32)
    found = ""
    if len(weights) not in (0, labels.classes) or not (weights > 0).all():
        found = f"{len(weights)} class weights for {labels.classes} classes, all of which must be positive"
    elif not np.isfinite(scales).all() or (scales[1:3] <= 0).any():
        found = f"the scales {start.scales}, which must be finite, and positive for scores and slopes"
    if found:
        raise DataError(f"the model to start from has {found}", "train that model again")


def with_loss(config: RunConfig) -> RunConfig:
    """The same settings, with the logistic loss if they name none."""
    loss = config.loss if config.loss.name else LossConfig(name="logistic")
    return msgspec.structs.replace(config, loss=loss)


def make_for(config: RunConfig, features: int, labels: Labels, *others: Any) -> Any:
    """The model that the loss declares."""
    return import_from(LOSSES[config.loss.name].linear)(config, features, labels, *others)
