"""How does an estimator train? With the threads and loops of an embedded run, but without a run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import msgspec
import numpy as np

from paceline.config import check
from paceline.data.labels import Labels
from paceline.data.memory.dataset import TrainingRows
from paceline.data.rows import NO_LIMIT
from paceline.data.sparse.scaling import Scaling
from paceline.errors import DivergedError, PacelineError
from paceline.models import factorization, linear
from paceline.models.linear import OnLabels, on_labels
from paceline.models.model import Floats, Model
from paceline.models.registry import find
from paceline.settings import RunConfig
from paceline.sklearn.learned import Learned, Values, of_fm, of_linear, parts_of
from paceline.training.backend import Due
from paceline.training.checkpoint import Progress, States
from paceline.training.embedded.backend import EmbeddedBackend


class Family(NamedTuple):
    """A kind of model: its name, the model for such labels, and what its table of parameters says."""

    model: str
    make: Callable[[OnLabels, int, Labels], Model]
    learned: Callable[[Values, Scaling], Learned]


LINEAR = Family("linear", lambda on, features, labels: linear.make_for(on[0], features, labels, *on[1:]), of_linear)
FM = Family("fm", lambda on, features, _labels: factorization.build_on(on, features), of_fm)


class State(NamedTuple):
    """What a fit leaves for the next `partial_fit`.

    `on`, `labels` and `scaling` say what labels and values mean. `table` is the parameters with what the optimizer
    remembers of them, in the input's order. `fits` counts the calls so far, and `seed` is that of the first one.
    """

    on: OnLabels
    labels: Labels
    scaling: Scaling
    table: Floats
    seed: int
    fits: int = 0


class Fitted(NamedTuple):
    """What a fit leaves, and the `values` of its parameters [keys, columns], in the input's order."""

    state: State
    values: Values


class _Given(NamedTuple):
    """A model that has been built already."""

    model: Model

    def build(self, config: RunConfig, dataset: Any, rows_per_update: int) -> Model:
        return self.model


def train(family: Family, config: RunConfig, dataset: TrainingRows, before: State | None = None) -> Fitted:
    """Train as configured on the rows of a dataset, from where the last fit ended; raises a `PacelineError`.

    `config.seed` is that of the first fit.
    """
    if before is not None:
        _refuse_other(before.on.config, config)
    on = on_labels(find(family.model), check(config), dataset) if before is None else before.on
    fits = 0 if before is None else before.fits
    # Each call shuffles in its own way.
    config = msgspec.structs.replace(config, loss=on.config.loss, seed=config.seed + fits)
    on = on._replace(config=config)
    model = family.make(on, dataset.features, dataset.labels)
    with closing(EmbeddedBackend(config, dataset, _Given(model))) as backend:
        if before is not None:
            backend.restore(Progress(), States(before.table))
        backend.make_ready()
        tally = backend.run_segment(NO_LIMIT, lambda _: Due.NOTHING, lambda _: None)
        table, values = backend.hand_over_table(tally.position)
    if not all(np.isfinite(part).all() for _, part in parts_of(values)):
        rate = config.optimizer.learning_rate
        raise DivergedError(f"the weights are no longer numbers, learning rate {rate:g}", "choose a smaller one")
    return Fitted(State(on, dataset.labels, dataset.scaling, table, config.seed - fits, fits + 1), values)


def _refuse_other(before: RunConfig, now: RunConfig) -> None:
    """Raise if settings differ that decide what the parameters of the fit before mean."""
    fixed = {
        "loss": (before.loss, now.loss if now.loss.name else before.loss),
        "dim": (before.factors.dim, now.factors.dim),
        "optimizer": (before.optimizer.name, now.optimizer.name),
    }
    if changed := [name for name, (old, new) in fixed.items() if old != new]:
        what = " and ".join(changed)
        raise PacelineError(f"`partial_fit` cannot change {what} after the first fit", "call `fit`, which begins again")


@contextmanager
def as_value_errors() -> Iterator[None]:
    """Raise what is wrong as scikit-learn does."""
    try:
        yield
    except PacelineError as error:
        raise ValueError(f"{error.message}{f' ({error.hint})' if error.hint else ''}") from None
