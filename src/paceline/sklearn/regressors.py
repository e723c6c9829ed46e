"""What regressors share: scores become predictions."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data

from paceline.data.labels import Labels
from paceline.models.loss_entries import LOSSES
from paceline.sklearn.base import MATRIX, Estimator
from paceline.sklearn.fitting import State
from paceline.sklearn.learned import Doubles, Learned
from paceline.sklearn.sample import Sample

NUMBERS = Labels("numbers", ())
# What a score predicts, if it is not the prediction itself.
LINKS = {"poisson": np.exp}
LOSSES_OF_NUMBERS = {name for name, loss in LOSSES.items() if loss.for_numbers and loss.scores == "one"}


class Regressor(RegressorMixin, Estimator):
    """A regressor of some family of models."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from rows and their targets; what was learned before is forgotten.

        Parameters
        ----------
        X : array or sparse matrix of shape (rows, features)
            The rows. Sparse ones are used as CSR.
        y : array of shape (rows,)
            Their targets.
        sample_weight : array of shape (rows,), default=None
            How much each row counts.

        Returns
        -------
        self
            The fitted estimator.
        """
        self._validate_params()
        self._forget()
        self._learn_numbers(X, y, sample_weight, None, self.epochs)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Go on learning: one epoch over more rows, with the weights and the optimizer's state of the last call.

        Values are scaled as in the first call. `finish` has no effect.

        Parameters
        ----------
        X : array or sparse matrix of shape (rows, features)
            The rows.
        y : array of shape (rows,)
            Their targets.
        sample_weight : array of shape (rows,), default=None
            How much each row counts.

        Returns
        -------
        self
            The fitted estimator.
        """
        self._validate_params()
        self._learn_numbers(X, y, sample_weight, getattr(self, "_state", None), None)
        return self

    def predict(self, X: Any) -> Doubles:
        """What the model predicts for rows.

        Parameters
        ----------
        X : array or sparse matrix of shape (rows, features)
            The rows.

        Returns
        -------
        array of shape (rows,)
            The predictions.
        """
        scores = self._scores(X)[:, 0]
        link = LINKS.get(self.loss)
        return scores if link is None else link(scores)

    def _learn_numbers(self, X: Any, y: Any, sample_weight: Any, before: State | None, epochs: Any) -> None:
        X, y = validate_data(self, X, y, reset=before is None, y_numeric=True, **MATRIX)
        targets = np.asarray(y, np.float64)
        if max(targets.max(), -targets.min()) > np.finfo(np.float32).max:
            raise ValueError(f"y has {targets[np.abs(targets).argmax()]:g}, which is too large for float32")
        self._learn(Sample(X, targets, NUMBERS, self._weights(sample_weight, X)), self.loss, before, epochs)

    def _keep(self, learned: Learned) -> None:
        self.coef_, self.intercept_ = learned.weights[0], float(learned.bias[0])
        if learned.factors is not None:
            self.factors_ = learned.factors

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = LOSSES[self.loss].least_label >= 0 if self.loss in LOSSES else False
        return tags
