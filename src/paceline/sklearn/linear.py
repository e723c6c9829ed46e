"""Linear models as estimators."""

from __future__ import annotations

from typing import Any, ClassVar

from sklearn.utils._param_validation import StrOptions

from paceline.sklearn.base import ABOVE_0, FRACTION, Estimator
from paceline.sklearn.classifiers import Classifier
from paceline.sklearn.fitting import LINEAR
from paceline.sklearn.regressors import LOSSES_OF_NUMBERS, Regressor

FINISH = {"finish": [StrOptions({"optimum"}), None]}


class PacelineClassifier(Classifier):
    """A linear classifier: logistic regression (softmax regression of more than two classes), or a support vector
    machine.

    It trains with paceline's compiled loops, straight from arrays or sparse matrices in memory. Columns of any size are
    fine: those whose values are far from 1 are centred and scaled on the way, and `coef_` is for the values as given.
    Training reads values in float32; a warning names columns of an array that differ too little from their mean for it.

    Parameters
    ----------
    loss : {"logistic", "hinge", "squared-hinge"}, default="logistic"
        What training makes small. Only the logistic loss has probabilities and takes more than two classes.
    learning_rate : float, default=0.05
        The size of steps.
    optimizer : {"adagrad", "sgd", "ftrl"}, default="adagrad"
        How weights change.
    l1 : float, default=0.0
        The strength of L1 regularisation, which makes weights zero.
    l2 : float, default=0.0
        The strength of L2 regularisation, which makes weights small. It acts on the weights of scaled values.
    epochs : int or "auto", default="auto"
        How often training goes through the rows. By default, about 200,000 rows are trained on in all, fewer if there
        are many features for few rows, and each row at least once.
    class_weight : dict, "balanced" or None, default=None
        How much rows of each class count, in addition to `sample_weight`.
    finish : {"optimum"} or None, default=None
        "optimum" goes on after the last epoch until the weighted mean of the losses + l2 / 2 · |weights|² is smallest,
        in float64. The loss must be smooth (not "hinge") and `l1` must be 0. The result does not depend on the order of
        the rows, and a row of weight 2 counts exactly like two rows. With `l2=0`, least squares ends at the smallest of
        all best weights; other losses get a tiny penalty, so that they have an optimum even if the weights would
        otherwise grow without end.
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
    coef_ : array of shape (1, features), or (classes, features) if there are more than two
        The weights.
    intercept_ : array of shape (1,) or (classes,)
        The biases.
    epochs_ : int
        How often the last fit went through its rows.
    n_features_in_ : int
        The number of features.
    feature_names_in_ : array of shape (features,)
        The names of the columns, if rows came as a frame.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[50_000.0, 1], [52_000, 0], [21_000, 1], [19_000, 0]])
    >>> classifier = PacelineClassifier(random_state=0).fit(X, ["rich", "rich", "poor", "poor"])
    >>> classifier.predict([[51_000, 0], [20_000, 1]]).tolist()
    ['rich', 'poor']
    """

    _family = LINEAR
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **Estimator._parameter_constraints, **FINISH, "loss": [StrOptions({"logistic", "hinge", "squared-hinge"})],
        "class_weight": [dict, StrOptions({"balanced"}), None],
    }  # fmt: skip

    def __init__(
        self, loss: str = "logistic", *, learning_rate: float = 0.05, optimizer: str = "adagrad", l1: float = 0.0,
        l2: float = 0.0, epochs: int | str = "auto", class_weight: Any = None, finish: str | None = None,
        shuffle: bool = True, scale: str = "auto", n_jobs: int | None = None, random_state: Any = None,
    ) -> None:  # fmt: skip
        self.loss = loss
        self.learning_rate = learning_rate
        self.optimizer = optimizer
        self.l1 = l1
        self.l2 = l2
        self.epochs = epochs
        self.class_weight = class_weight
        self.finish = finish
        self.shuffle = shuffle
        self.scale = scale
        self.n_jobs = n_jobs
        self.random_state = random_state


class PacelineRegressor(Regressor):
    """A linear model of numbers: least squares, Huber, quantile or Poisson regression.

    It trains with paceline's compiled loops, straight from arrays or sparse matrices in memory. Columns and targets of
    any size are fine: columns whose values are far from 1 are centred and scaled on the way, and `coef_` is for the
    values as given. Training reads numbers in float32; a warning names columns of an array, and targets, that differ
    too little from their mean for it.

    Parameters
    ----------
    loss : {"squared", "huber", "quantile", "poisson"}, default="squared"
        What training makes small. "poisson" is for counts, and predicts their mean.
    quantile : float, default=0.5
        For the loss "quantile": the share of targets below the predictions.
    delta : float, default=1.0
        For the loss "huber": errors above this count linearly, not squared.
    learning_rate : float, default=0.05
        The size of steps, in units of the targets' deviation.
    optimizer : {"adagrad", "sgd", "ftrl"}, default="adagrad"
        How weights change.
    l1 : float, default=0.0
        The strength of L1 regularisation, which makes weights zero.
    l2 : float, default=0.0
        The strength of L2 regularisation, which makes weights small. It acts on the weights of scaled values.
    epochs : int or "auto", default="auto"
        How often training goes through the rows. By default, about 200,000 rows are trained on in all, fewer if there
        are many features for few rows, and each row at least once.
    finish : {"optimum"} or None, default=None
        "optimum" goes on after the last epoch until the weighted mean of the losses + l2 / 2 · |weights|² is smallest,
        in float64. The loss must be smooth (not "quantile") and `l1` must be 0. The result does not depend on the order
        of the rows, and a row of weight 2 counts exactly like two rows. With `l2=0`, least squares ends at the smallest
        of all best weights; other losses get a tiny penalty, so that they have an optimum even if the weights would
        otherwise grow without end.
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
    >>> regressor = PacelineRegressor(random_state=0).fit(X, 1000 * X[:, 0] + 5000)
    >>> (regressor.coef_.round(-1) + 0.0).tolist()
    [1000.0, 0.0, 0.0]
    """

    _family = LINEAR
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **Estimator._parameter_constraints, **FINISH, "loss": [StrOptions(LOSSES_OF_NUMBERS)], "quantile": [FRACTION],
        "delta": [ABOVE_0],
    }  # fmt: skip

    def __init__(
        self, loss: str = "squared", *, quantile: float = 0.5,
        delta: float = 1.0, learning_rate: float = 0.05,
        optimizer: str = "adagrad", l1: float = 0.0, l2: float = 0.0, epochs: int | str = "auto",
        finish: str | None = None, shuffle: bool = True, scale: str = "auto", n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:  # fmt: skip
        self.loss = loss
        self.quantile = quantile
        self.delta = delta
        self.learning_rate = learning_rate
        self.optimizer = optimizer
        self.l1 = l1
        self.l2 = l2
        self.epochs = epochs
        self.finish = finish
        self.shuffle = shuffle
        self.scale = scale
        self.n_jobs = n_jobs
        self.random_state = random_state
