"""Factorization machines as estimators."""

from __future__ import annotations

from typing import Any, ClassVar

from sklearn.utils._param_validation import StrOptions

from paceline.sklearn.base import ABOVE_0, AT_LEAST_0, AT_LEAST_1, FRACTION, Estimator
from paceline.sklearn.classifiers import Classifier
from paceline.sklearn.fitting import FM
from paceline.sklearn.regressors import LOSSES_OF_NUMBERS, Regressor

FACTORS = {"dim": [AT_LEAST_1], "factor_learning_rate": [ABOVE_0], "factor_l2": [AT_LEAST_0]}


class FMClassifier(Classifier):
    """A factorization machine for two classes: a linear classifier that also learns what pairs of features tell.

    The score of a row x is intercept_ + x · coef_ + the sum of x[i] x[j] (factors_[i] · factors_[j]) over all pairs.

    It trains with paceline's compiled loops, straight from arrays or sparse matrices in memory. Columns whose values
    are far from 1 are centred and scaled on the way, and what is learned is for the values as given.

    Parameters
    ----------
    loss : {"logistic", "hinge", "squared-hinge"}, default="logistic"
        What training makes small. Only the logistic loss has probabilities.
    dim : int, default=8
        How many factors each feature has. What two features have together is the product of their factors.
    learning_rate : float, default=0.05
        The size of steps.
    factor_learning_rate : float, default=0.02
        The size of steps of the factors.
    factor_l2 : float, default=0.0
        The strength of L2 regularisation of the factors.
    optimizer : {"adagrad", "sgd", "ftrl"}, default="adagrad"
        How weights change. Factors change by AdaGrad.
    l1 : float, default=0.0
        The strength of L1 regularisation, which makes weights zero.
    l2 : float, default=0.0
        The strength of L2 regularisation, which makes weights small. It acts on the weights of scaled values.
    epochs : int or "auto", default="auto"
        How often training goes through the rows. By default, about 200,000 rows are trained on in all, fewer if there
        are many features for few rows, and each row at least once.
    class_weight : dict, "balanced" or None, default=None
        How much rows of each class count, in addition to `sample_weight`.
    shuffle : bool, default=True
        Whether each epoch has an order of its own. False keeps the order of the rows, for `partial_fit` of a stream.
    scale : {"auto", "none"}, default="auto"
        "none" trains on values as they are.
    n_jobs : int or None, default=None
        How many threads train, but at most one per 10,000 rows. None means one thread, -1 one per core. They share one
        model without waiting for each other, so results differ from fit to fit. It counts only without `random_state`.
    random_state : int, RandomState instance or None, default=None
        Decides the order of rows. With an int, or a RandomState instance, a fit is repeatable: it uses one thread, and
        the result does not depend on `n_jobs`.

    Attributes
    ----------
    classes_ : array of shape (classes,)
        The labels.
    coef_ : array of shape (1, features)
        The weights.
    intercept_ : array of shape (1,)
        The bias.
    factors_ : array of shape (features, dim)
        The factors.
    epochs_ : int
        How often the last fit went through its rows.
    n_features_in_ : int
        The number of features.
    feature_names_in_ : array of shape (features,)
        The names of the columns, if rows came as a frame.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).choice([-1.0, 1.0], size=(500, 4))
    >>> y = np.where(X[:, 0] == X[:, 1], "same", "different")
    >>> FMClassifier(random_state=0).fit(X, y).score(X, y)
    1.0
    """

    _family = FM
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **Estimator._parameter_constraints, **FACTORS, "loss": [StrOptions({"logistic", "hinge", "squared-hinge"})],
        "class_weight": [dict, StrOptions({"balanced"}), None],
    }  # fmt: skip

    def __init__(
        self, loss: str = "logistic", *, dim: int = 8, learning_rate: float = 0.05, factor_learning_rate: float = 0.02,
        factor_l2: float = 0.0, optimizer: str = "adagrad", l1: float = 0.0, l2: float = 0.0,
        epochs: int | str = "auto", class_weight: Any = None, shuffle: bool = True, scale: str = "auto",
        n_jobs: int | None = None, random_state: Any = None,
    ) -> None:  # fmt: skip
        self.loss = loss
        self.dim = dim
        self.learning_rate = learning_rate
        self.factor_learning_rate = factor_learning_rate
        self.factor_l2 = factor_l2
        self.optimizer = optimizer
        self.l1 = l1
        self.l2 = l2
        self.epochs = epochs
        self.class_weight = class_weight
        self.shuffle = shuffle
        self.scale = scale
        self.n_jobs = n_jobs
        self.random_state = random_state


class FMRegressor(Regressor):
    """A factorization machine for numbers: a linear model that also learns what pairs of features tell.

    The score of a row x is intercept_ + x · coef_ + the sum of x[i] x[j] (factors_[i] · factors_[j]) over all pairs.

    It trains with paceline's compiled loops, straight from arrays or sparse matrices in memory. Columns whose values
    are far from 1 are centred and scaled on the way, and what is learned is for the values as given.

    Parameters
    ----------
    loss : {"squared", "huber", "quantile", "poisson"}, default="squared"
        What training makes small. "poisson" is for counts, and predicts their mean.
    quantile : float, default=0.5
        For the loss "quantile": the share of targets below the predictions.
    delta : float, default=1.0
        For the loss "huber": errors above this count linearly, not squared.
    dim : int, default=8
        How many factors each feature has. What two features have together is the product of their factors.
    learning_rate : float, default=0.05
        The size of steps, in units of the targets' deviation.
    factor_learning_rate : float, default=0.02
        The size of steps of the factors.
    factor_l2 : float, default=0.0
        The strength of L2 regularisation of the factors.
    optimizer : {"adagrad", "sgd", "ftrl"}, default="adagrad"
        How weights change. Factors change by AdaGrad.
    l1 : float, default=0.0
        The strength of L1 regularisation, which makes weights zero.
    l2 : float, default=0.0
        The strength of L2 regularisation, which makes weights small. It acts on the weights of scaled values.
    epochs : int or "auto", default="auto"
        How often training goes through the rows. By default, about 200,000 rows are trained on in all, fewer if there
        are many features for few rows, and each row at least once.
    shuffle : bool, default=True
        Whether each epoch has an order of its own. False keeps the order of the rows, for `partial_fit` of a stream.
    scale : {"auto", "none"}, default="auto"
        "none" trains on values as they are.
    n_jobs : int or None, default=None
        How many threads train, but at most one per 10,000 rows. None means one thread, -1 one per core. They share one
        model without waiting for each other, so results differ from fit to fit. It counts only without `random_state`.
    random_state : int, RandomState instance or None, default=None
        Decides the order of rows. With an int, or a RandomState instance, a fit is repeatable: it uses one thread, and
        the result does not depend on `n_jobs`.

    Attributes
    ----------
    coef_ : array of shape (features,)
        The weights.
    intercept_ : float
        The bias.
    factors_ : array of shape (features, dim)
        The factors.
    epochs_ : int
        How often the last fit went through its rows.
    n_features_in_ : int
        The number of features.
    feature_names_in_ : array of shape (features,)
        The names of the columns, if rows came as a frame.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> y = X[:, 0] * X[:, 1]
    >>> bool(FMRegressor(random_state=0).fit(X, y).score(X, y) > 0.99)
    True
    """

    _family = FM
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **Estimator._parameter_constraints, **FACTORS, "loss": [StrOptions(LOSSES_OF_NUMBERS)], "quantile": [FRACTION],
        "delta": [ABOVE_0],
    }  # fmt: skip

    def __init__(
        self, loss: str = "squared", *, quantile: float = 0.5, delta: float = 1.0, dim: int = 8,
        learning_rate: float = 0.05, factor_learning_rate: float = 0.02, factor_l2: float = 0.0,
        optimizer: str = "adagrad", l1: float = 0.0, l2: float = 0.0, epochs: int | str = "auto",
        shuffle: bool = True, scale: str = "auto", n_jobs: int | None = None, random_state: Any = None,
    ) -> None:  # fmt: skip
        self.loss = loss
        self.quantile = quantile
        self.delta = delta
        self.dim = dim
        self.learning_rate = learning_rate
        self.factor_learning_rate = factor_learning_rate
        self.factor_l2 = factor_l2
        self.optimizer = optimizer
        self.l1 = l1
        self.l2 = l2
        self.epochs = epochs
        self.shuffle = shuffle
        self.scale = scale
        self.n_jobs = n_jobs
        self.random_state = random_state
