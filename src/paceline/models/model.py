"""What is a model? What everything else, from the coordinator to the reports, may ask of one.

A `Model` is what a run trains: its parameters' layout, how its gradient and scores are computed, and how it is saved. A
`Compute` is one worker's part of it, with working memory that no other thread uses. `registry.py` names the models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.kernels import tables
from paceline.models.metrics import MetricSums
from paceline.parameters.layout import Layout, Rules, TableLayout
from paceline.parameters.optimizers.sgd import Sgd

Floats = NDArray[np.float32]

NO_RULE = Sgd(np.float32(0), np.float32(0), np.float32(0))


class Tensor(NamedTuple):
    """One named tensor of a model, where it lies among the dense values, and as what kind of number it is saved."""

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


class TableView(NamedTuple):
    """A table to read: its rows, flat, and the rules that turn their state into values."""

    rules: Rules
    rows: Floats
    layout: TableLayout

    @staticmethod
    def of_values(values: Floats, layout: TableLayout) -> TableView:
        """Values alone [keys, dim], flat, as a table whose optimizer remembers nothing."""
        plain: Any = NO_RULE if layout.dim == 1 else (tables.ColumnGroup(NO_RULE, tables.Several(layout.dim)),)
        return TableView(Rules(plain, plain), values, layout)


class Parameters(NamedTuple):
    """All parameters of a model, to score with or to save."""

    table: TableView | None = None
    dense: Any = None


class Step(NamedTuple):
    """What one gradient is computed from, and where it goes.

    `rows` are the batch; `turn`, a rank and the first row's position, decides whatever is random. Of a table: `local`
    is the number of each nonzero's key, `weights` and `sums` [numbers, dim] are flat. `dense` and `dense_sums` are the
    dense values and their gradient.
    """

    rows: Any
    turn: tuple[int, int] = (0, 0)
    local: Any = None
    weights: Any = None
    sums: Any = None
    dense: Any = None
    dense_sums: Any = None


class Compute(Protocol):
    """One worker's gradient. Not shared between threads."""

    holds_values: bool
    """Whether it reads the dense values all the while it computes, and not only at first."""
    filled: Callable[[int], None] | None
    """If set, `gradient` calls it with the number of a tensor whose sums are complete before the others'."""

    def gradient(self, step: Step) -> Any:
        """The sums of the rows' gradients into the step's sums, and the sum of their losses."""

    @property
    def use_threads(self) -> Callable[[int], None] | None:
        """Lets it compute on this many threads, at least one. None if it computes on one thread alone.

        Workers that compute on several threads take turns.
        """


class Model(Protocol):
    """What a run trains."""

    layout: Layout
    tensors: tuple[Tensor, ...]
    """The dense values by name, those that are trained first."""
    fingerprint: str
    """Tells models with other tensors apart; empty if the settings of a run do."""
    kernel: Any
    """The model as compiled loops know it (`kernels/steps.py`); None if only Python computes its gradient."""
    train_rows: Any
    """A compiled loop that does whole steps of one row each; None if there is none."""
    scoring_threads: bool
    """Whether several threads may score at once."""

    def initial(self) -> Floats:
        """The dense values that training begins with."""

    def compute(self) -> Compute:
        """One worker's part."""

    def scores(self, parameters: Parameters, rows: Any) -> Floats:
        """The score of each row [rows], or of each row and class [rows, classes]."""

    def metric_sums(self) -> MetricSums:
        """What adds up the metrics of its task."""

    def probabilities(self, scores: Floats) -> Floats:
        """What scores predict: a probability or a mean per row, or a probability per row and class."""

    def predict(self, scores: Floats) -> dict[str, NDArray[Any]]:
        """What `paceline predict` writes of scores, by column."""

    def save(self, parameters: Parameters) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """The tensors of the model's file by name, and what `model.json` says besides what every model's does."""

    def close(self) -> None:
        """Release whatever it holds."""
