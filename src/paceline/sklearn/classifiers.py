"""What classifiers share: labels of any kind become classes, and scores become labels and probabilities."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils import compute_sample_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import validate_data

from paceline.data.labels import Labels
from paceline.models.registry import find
from paceline.sklearn.base import MATRIX, Estimator
from paceline.sklearn.fitting import State
from paceline.sklearn.learned import Doubles, Learned
from paceline.sklearn.sample import Sample

PIECE_ROWS = 1 << 20


def _has_probabilities(estimator: Any) -> bool:
    if estimator.loss != "logistic":
        raise AttributeError(f"loss={estimator.loss!r} has no probabilities; loss='logistic' has them")
    return True


def _pieces(y: NDArray[Any]) -> list[NDArray[Any]]:
    """Labels in pieces of about the same size: sorting all at once takes several times their memory."""
    return np.array_split(y, -(-max(1, len(y)) // PIECE_ROWS))


def _checked_pieces(y: NDArray[Any]) -> list[NDArray[Any]]:
    """Labels in pieces; raises unless they can be classes."""
    for piece in (pieces := _pieces(y)):
        check_classification_targets(piece)
    return pieces


class Classifier(ClassifierMixin, Estimator):
    """A classifier of some family of models."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from rows and their labels; what was learned before is forgotten.

        Parameters
        ----------
        X : array or sparse matrix of shape (rows, features)
            The rows. Sparse ones are used as CSR.
        y : array of shape (rows,)
            Their labels: numbers, text or anything else that can be sorted.
        sample_weight : array of shape (rows,), default=None
            How much each row counts.

        Returns
        -------
        self
            The fitted estimator.
        """
        self._validate_params()
        self._forget()
        X, y = validate_data(self, X, y, **MATRIX)
        self.classes_ = np.unique(np.concatenate([np.unique(piece) for piece in _checked_pieces(y)]))
        self._learn_classes(X, y, sample_weight, None, self.epochs)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Go on learning: one epoch over more rows, with the weights and the optimizer's state of the last call.

        Values are scaled as in the first call. `finish` has no effect.

        Parameters
        ----------
        X : array or sparse matrix of shape (rows, features)
            The rows.
        y : array of shape (rows,)
            Their labels. Some classes may be missing.
        classes : array, default=None
            All classes that there will ever be; needed in the first call.
        sample_weight : array of shape (rows,), default=None
            How much each row counts.

        Returns
        -------
        self
            The fitted estimator.
        """
        self._validate_params()
        if self.class_weight == "balanced":
            raise ValueError("class_weight='balanced' needs all rows at once; give partial_fit the weights as a dict")
        before: State | None = getattr(self, "_state", None)
        X, y = validate_data(self, X, y, reset=before is None, **MATRIX)
        pieces = _checked_pieces(y)
        if before is None:
            if classes is None:
                raise ValueError("classes must be given in the first call of partial_fit")
            self.classes_ = unique_labels(classes)
        elif classes is not None and not np.array_equal(self.classes_, unique_labels(classes)):
            raise ValueError(f"classes is {classes}; in the first call it was {self.classes_}")
        for piece in pieces:
            self._refuse_unknown(piece)
        self._learn_classes(X, y, sample_weight, before, None)
        return self

    def decision_function(self, X: Any) -> Doubles:
        """The scores of rows: above 0 for the second of two classes, or one score per class, the highest of the
        predicted one.

        Parameters
        ----------
        X : array or sparse matrix of shape (rows, features)
            The rows.

        Returns
        -------
        array of shape (rows,), or (rows, classes) if there are more than two
            The scores.
        """
        scores = self._scores(X)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable label of each row.

        Parameters
        ----------
        X : array or sparse matrix of shape (rows, features)
            The rows.

        Returns
        -------
        array of shape (rows,)
            The labels.
        """
        scores = self.decision_function(X)
        found: NDArray[Any] = self.classes_[scores.argmax(axis=1) if scores.ndim == 2 else (scores > 0).astype(int)]
        return found

    @available_if(_has_probabilities)
    def predict_proba(self, X: Any) -> Doubles:
        """The probability of each class; only for the logistic loss.

        Parameters
        ----------
        X : array or sparse matrix of shape (rows, features)
            The rows.

        Returns
        -------
        array of shape (rows, classes)
            The probabilities, in the order of `classes_`.
        """
        scores = self.decision_function(X)
        found: Doubles = softmax(scores, axis=1) if scores.ndim == 2 else np.stack([expit(-scores), expit(scores)], 1)
        return found

    @available_if(_has_probabilities)
    def predict_log_proba(self, X: Any) -> Doubles:
        """The logarithms of `predict_proba`.

        Parameters
        ----------
        X : array or sparse matrix of shape (rows, features)
            The rows.

        Returns
        -------
        array of shape (rows, classes)
            The logarithms, in the order of `classes_`.
        """
        found: Doubles = np.log(self.predict_proba(X))
        return found

    def _learn_classes(self, X: Any, y: NDArray[Any], sample_weight: Any, before: State | None, epochs: Any) -> None:
        count = len(self.classes_)
        if count < 2:
            raise ValueError(f"y has only one class, {self.classes_.tolist()[0]!r}: a classifier needs two")
        weights = self._weights(sample_weight, X)
        if self.class_weight is not None:
            by_class = compute_sample_weight(self.class_weight, y)
            weights = by_class if weights is None else weights * by_class
        names = tuple(str(number) for number in range(count))
        labels = Labels() if count == 2 else Labels("classes", names)
        targets = [np.searchsorted(self.classes_, piece).astype(labels.dtype) for piece in _pieces(y)]
        self._learn(Sample(X, np.concatenate(targets), labels, weights), self._loss_for(count), before, epochs)

    def _loss_for(self, classes: int) -> str:
        """The loss of paceline for this number of classes."""
        if classes == 2:
            return str(self.loss)
        if not self._takes_many_classes():
            raise ValueError(
                "Only binary classification is supported. The type of the target is multiclass. "
                f"{classes} classes with loss={self.loss!r} need sklearn.multiclass.OneVsRestClassifier"
            )
        return "softmax"

    def _takes_many_classes(self) -> bool:
        return self.loss == "logistic" and "softmax" in find(self._family.model).losses

    def _refuse_unknown(self, y: NDArray[Any]) -> None:
        """Raise for a label that is not one of the classes."""
        known = np.isin(y, self.classes_)
        if not known.all():
            unknown = y[~known].tolist()[0]
            raise ValueError(f"y has the label {unknown!r}, which is not one of the classes {self.classes_}")

    def _keep(self, learned: Learned) -> None:
        self.coef_, self.intercept_ = learned.weights, learned.bias
        if learned.factors is not None:
            self.factors_ = learned.factors

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = self._takes_many_classes()
        return tags
