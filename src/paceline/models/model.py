"""What is a model? What everything else, from the coordinator to the reports, may ask of one.

A `Model` is what a run trains: the layout of its parameters, how its gradient and scores are computed, and how it is
saved. A `Compute` is one worker's part of it, with its working memory. `registry.py` lists the models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.models.losses import LabelUnits
from paceline.models.metrics import MetricSums
from paceline.models.tasks import Task
from paceline.parameters.layout import Layout, Rules, TableLayout

Floats = NDArray[np.float32]


class Tensor(NamedTuple):
    """A named tensor of a model: where it is among the dense values, and the type of number in which it is saved."""

    name: str
    shape: tuple[int, ...]
    start: int
    dtype: str = "float32"

    @property
    def stop(self) -> int:
        return self.start + int(np.prod(self.shape, dtype=np.int64))

    def of(self, values: Floats) -> Floats:
        """This tensor in an array of all dense values: a view."""
        return values[self.start : self.stop].reshape(self.shape)


def lay_out(shapes: Iterable[tuple[str, Sequence[int], str]]) -> tuple[Tensor, ...]:
    """Tensors with these names, shapes and types of numbers, one after the other."""
    found: list[Tensor] = []
    for name, shape, dtype in shapes:
        found.append(Tensor(name, tuple(shape), size_of(found), dtype))
    return tuple(found)


def size_of(tensors: Sequence[Tensor]) -> int:
    """How many values tensors have together."""
    return tensors[-1].stop if tensors else 0


def values_of(tensors: Sequence[Tensor], found: Mapping[str, Any]) -> Floats:
    """The values of all tensors, which are given by name."""
    values = np.zeros(size_of(tensors), np.float32)
    for tensor in tensors:
        tensor.of(values)[...] = found[tensor.name]
    return values


class TableView(NamedTuple):
    """A table to read: its rows, flat, and the rules that turn their state into values."""

    rules: Rules
    rows: Floats
    layout: TableLayout

    @staticmethod
    def of_values(values: Floats, layout: TableLayout) -> TableView:
        """Values alone [keys, dim], flat, as a table whose optimizer remembers nothing."""
        plain = layout.plain_rules()
        return TableView(Rules(plain, plain), values, layout)


class Parameters(NamedTuple):
    """All parameters of a model, to score with or to save."""

    table: TableView | None = None
    dense: Any = None


class Step(NamedTuple):
    """What one gradient is computed from, and where it goes.

    `rows` are the batch. `turn`, a rank and the position of the first row, seeds everything random. For a table,
    `local` is the number of each nonzero's key, and `weights` and `sums` [numbers, dim] are flat. `dense` and
    `dense_sums` are the dense values and their gradient.
    """

    rows: Any
    turn: tuple[int, int] = (0, 0)
    local: Any = None
    weights: Any = None
    sums: Any = None
    dense: Any = None
    dense_sums: Any = None


class Compute(Protocol):
    """Computes gradients for one worker."""

    holds_values: bool
    """Whether it reads the dense values during the whole computation, not only at its start."""
    filled: Callable[[int], None] | None
    """If set, `gradient` calls it with the number of a tensor whose sums are complete before the others'."""

    def gradient(self, step: Step) -> Any:
        """The sums of the rows' gradients into the step's sums, and the sum of their losses."""

    @property
    def use_threads(self) -> Callable[[int], None] | None:
        """Sets the number of threads that it computes on, at least one. None if it always uses one.

        Workers that compute on several threads take turns.
        """


class Output(Protocol):
    """What the scores of a model mean."""

    @property
    def task(self) -> Task: ...

    @property
    def num_classes(self) -> int:
        """How many classes labels may have at most, if each has a score; else 0."""

    def metric_sums(self) -> MetricSums:
        """What adds up the metrics of the model's task."""

    def probabilities(self, scores: Floats) -> Floats:
        """What scores predict: a probability or a mean per row, or a probability per row and class."""

    def predict(self, scores: Floats) -> dict[str, NDArray[Any]]:
        """What `paceline predict` writes of scores, by column."""


class Model(Protocol):
    """What a run trains."""

    @property
    def output(self) -> Output: ...

    @property
    def make_kernel(self) -> Callable[[], Any] | None:
        """Makes the model as the compiled loops of one worker take it, with memory for them to work in.

        None if its gradient is computed in Python.
        """

    layout: Layout
    tensors: tuple[Tensor, ...]
    """The dense values by name; the trained ones come first."""
    fingerprint: str
    """Differs between models with different tensors; empty if the settings of a run say it all."""
    train_rows: Any
    """A compiled loop that does whole steps of one row each; None if there is none."""
    loops_on_gpu: str
    """The kernels of a model of a table, "module:class" (`torch/sparse/launch.py: Loops`); empty if it has none."""
    curvature: float | None
    """The most that the loss's second derivative by the score can be; None if workers cannot have copies of keys."""
    start_loss: float
    """The mean loss of rows before training, more or less; 0 for a model that is not trained."""
    knows_start: bool
    """Whether training begins with scores of that loss. Else the first values, and their loss, may be anything."""
    label_units: LabelUnits
    """What it took from the labels of its first data."""
    scoring_threads: bool
    """Whether several threads may score at once."""

    def initial(self) -> Floats:
        """The dense values that training begins with."""

    def compute(self) -> Compute:
        """One worker's part."""

    def scores(self, parameters: Parameters, rows: Any) -> Floats:
        """The score of each row [rows], or of each row and class [rows, classes]."""

    def save(self, parameters: Parameters) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """The tensors of the model's file by name, and the fields of `model.json` that only this model has."""


class StepOperations(Protocol):
    """The operations of a model's step, to be timed one by one."""

    what: dict[str, str]
    """What each operation does, by name, in their order."""

    def step(self, batch: Any) -> Iterator[str]:
        """One gradient step on a batch that was read; yields the name of each operation as soon as it is done."""
