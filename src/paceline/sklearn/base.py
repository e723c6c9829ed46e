"""What all estimators share: from matrices to a dataset in memory, and from settings to a run."""

from __future__ import annotations

from contextlib import AbstractContextManager
from numbers import Integral, Real
from typing import Any, ClassVar

import msgspec
import numpy as np
from joblib import effective_n_jobs
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from paceline.data.limits import Scale
from paceline.data.memory.dataset import LabelledRows, TrainingRows, dataset_of
from paceline.data.memory.matrices import rows_of_matrix
from paceline.data.sparse.dataset import NO_SCALING
from paceline.defaults import epochs_for, workers_for
from paceline.models.loss_entries import LOSSES
from paceline.parameters.optimizers import OPTIMIZERS, TABLE_OPTIMIZERS
from paceline.settings import FactorsConfig, LossConfig, OptimizerConfig, RunConfig
from paceline.sklearn.digits import warn_of_lost_digits
from paceline.sklearn.finish import finish
from paceline.sklearn.fitting import Family, Fitted, State, as_value_errors, train
from paceline.sklearn.learned import Doubles, Learned
from paceline.sklearn.sample import Sample
from paceline.sklearn.smooth import SMOOTH

ABOVE_0, AT_LEAST_0 = Interval(Real, 0, None, closed="neither"), Interval(Real, 0, None, closed="left")
FRACTION = Interval(Real, 0, 1, closed="neither")
AT_LEAST_1 = Interval(Integral, 1, None, closed="left")
# How `FactorsConfig` calls parameters of estimators.
FACTORS = {"dim": "dim", "factor_learning_rate": "learning_rate", "factor_l2": "l2"}
MATRIX = {"accept_sparse": "csr", "dtype": [np.float64, np.float32]}


class Estimator(BaseEstimator):
    """An estimator of some family of models."""

    _family: ClassVar[Family]
    _state: State
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "learning_rate": [ABOVE_0], "optimizer": [StrOptions({*TABLE_OPTIMIZERS})], "l1": [AT_LEAST_0],
        "l2": [AT_LEAST_0], "epochs": [AT_LEAST_1, StrOptions({"auto"})], "scale": [StrOptions({"auto", "none"})],
        "shuffle": ["boolean"], "n_jobs": [None, Integral], "random_state": ["random_state"],
    }  # fmt: skip

    def _forget(self) -> None:
        """Begin a fit: one that fails must not leave weights beside the classes and columns of other rows."""
        for name in ("_state", "coef_", "intercept_", "factors_", "epochs_"):
            self.__dict__.pop(name, None)

    def _learn(self, rows: Sample, loss: str, before: State | None, epochs: int | str | None) -> None:
        """Train on rows, from where the last fit ended, and keep what was learned. Without `epochs`, it is one epoch
        for a `partial_fit`, which has no finish.
        """
        finishing = epochs is not None and getattr(self, "finish", None) is not None
        if finishing:
            self._check_finish(loss)
        with as_value_errors():
            epochs, (state, values) = self._train(rows, loss, before, epochs)
        if finishing:
            values = finish(rows, state.scaling, state.on.config.loss, self.l2, values[:])
            state.table[:, : values.shape[1]] = values
        elif before is None:
            warn_of_lost_digits(rows, state.scaling)
        self.epochs_ = epochs
        self._state = state
        self._keep(self._family.learned(values, state.scaling))

    def _train(self, rows: Sample, loss: str, before: State | None, epochs: int | str | None) -> tuple[int, Fitted]:
        """How many epochs it took, and what they left. The rows in blocks are freed when it returns."""
        count = rows.matrix.shape[0]
        with self._dataset(rows, before) as dataset:
            if epochs == "auto":
                epochs = epochs_for(self._family.model, count, len(dataset.manifest.hot_keys))
            epochs = 1 if epochs is None else int(epochs)
            return epochs, train(self._family, self._config(loss, epochs, count, before), dataset, before)

    def _dataset(self, rows: Sample, before: State | None) -> AbstractContextManager[TrainingRows]:
        """The rows in blocks, while the context lasts. After the first fit, values keep their meaning."""
        scale: Scale = self.scale if before is None else "none"
        scaling = NO_SCALING if before is None else before.scaling
        targets = rows.targets.astype(rows.labels.dtype, copy=False)
        weights = None if rows.weights is None else rows.weights.astype(np.float32)
        given = LabelledRows(rows_of_matrix(rows.matrix), targets, weights, rows.labels)
        return dataset_of(given, scale=scale, scaling=scaling)

    def _check_finish(self, loss: str) -> None:
        """Raise if nothing can be finished with these parameters."""
        if loss not in SMOOTH:
            raise ValueError(f"finish='optimum' needs a smooth loss, and {loss!r} is not: leave finish out")
        if self.l1 > 0:
            raise ValueError(f"finish='optimum' needs l1=0, and it is {self.l1:g}: leave finish out, or use l2")
        if not OPTIMIZERS[self.optimizer].keeps_weights:
            raise ValueError(f"finish='optimum' cannot go on from optimizer={self.optimizer!r}: use 'adagrad'")

    def _config(self, loss: str, epochs: int, rows: int, before: State | None) -> RunConfig:
        """The settings of the run that a fit is."""
        given = self.get_params(deep=False)
        factors = {field: given[name] for name, field in FACTORS.items() if name in given}
        optimizer = {name: given[name] for name in ("learning_rate", "l1", "l2")}
        own = {name: given[name] for name in LOSSES[loss].settings}
        workers = 1 if self.random_state is not None else workers_for(rows, effective_n_jobs(self.n_jobs))
        return RunConfig(
            data="memory", model=self._family.model, pace="async", workers=workers, batch_size=1, epochs=epochs,
            shuffle=self.shuffle, seed=self._seed() if before is None else before.seed,
            loss=LossConfig(name=loss, **own), optimizer=OptimizerConfig(name=self.optimizer, **optimizer),
            factors=msgspec.structs.replace(FactorsConfig(), **factors),
        )  # fmt: skip

    def _seed(self) -> int:
        if isinstance(self.random_state, Integral):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _weights(self, sample_weight: Any, matrix: Any) -> Doubles | None:
        """The weights of rows, checked."""
        if sample_weight is None:
            return None
        found: Doubles = _check_sample_weight(sample_weight, matrix, dtype=np.float64)
        if (found < 0).any() or not (found > 0).any():
            raise ValueError("sample_weight: no weight may be negative, and some must be positive")
        return found

    def _keep(self, learned: Learned) -> None:
        """Set what users see of it."""
        raise NotImplementedError

    def _scores(self, X: Any) -> Doubles:
        """The scores [rows, outputs] of new rows."""
        check_is_fitted(self, "coef_")
        matrix = validate_data(self, X, reset=False, **MATRIX)
        parts = np.atleast_2d(self.coef_), np.atleast_1d(self.intercept_), getattr(self, "factors_", None)
        return Learned(*parts).scores(matrix)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
