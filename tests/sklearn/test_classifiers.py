"""What `partial_fit` of classifiers needs to know, and that it goes on where the last call ended."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from paceline.sklearn import FMClassifier, PacelineClassifier, classifiers

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 4)) * [1, 1000, 1, 1]
Y = np.digitize(X[:, 0], [-0.5, 0.5])


@pytest.mark.parametrize("kind", [PacelineClassifier, FMClassifier])
def test_two_halves_in_order_are_one_call(kind: type) -> None:
    y = Y > 0
    settings = {"shuffle": False, "scale": "none", "random_state": 0}
    whole = kind(**settings).partial_fit(X / 1000, y, classes=[False, True])
    halves = kind(**settings).partial_fit(X[:150] / 1000, y[:150], classes=[False, True])
    halves.partial_fit(X[150:] / 1000, y[150:])
    assert (halves.coef_ == whole.coef_).all()
    assert halves.epochs_ == 1


@pytest.mark.parametrize("kind", [PacelineClassifier, FMClassifier])
def test_two_halves_of_sparse_rows_are_one_call(kind: type) -> None:
    """Although other columns are frequent in each, and some are only in one."""
    parts = [sparse_rows(half) for half in range(2)]
    both, labels = scipy.sparse.vstack(parts, format="csr"), RNG.integers(0, 2, 600)
    settings = {"shuffle": False, "scale": "none", "random_state": 0}
    whole = kind(**settings).partial_fit(both, labels, classes=[0, 1])
    halves = kind(**settings)
    for half, part in enumerate(parts):
        halves.partial_fit(part, labels[300 * half : 300 * half + 300], classes=[0, 1])
    assert (halves.coef_ == whole.coef_).all()
    assert (halves.intercept_ == whole.intercept_).all()
    if kind is FMClassifier:
        assert (halves.factors_ == whole.factors_).all()


def sparse_rows(half: int) -> scipy.sparse.csr_matrix:
    """300 rows of five columns each: of the first 70 of 100 columns in one half, of the last 70 in the other."""
    often = np.arange(70.0, 0, -1)[:: 1 if half == 0 else -1]
    drawn = [RNG.choice(70, 5, replace=False, p=often / often.sum()) for _ in range(300)]
    columns = np.sort(drawn, axis=1) + 30 * half
    return scipy.sparse.csr_matrix((np.ones(1500), columns.ravel(), np.arange(0, 1501, 5)), shape=(300, 100))


def test_each_call_learns_more() -> None:
    classifier, scores = PacelineClassifier(random_state=0), []
    for _ in range(5):
        for part in range(0, 300, 50):
            rows = slice(part, part + 50)
            classifier.partial_fit(X[rows], Y[rows], classes=[0, 1, 2])
        scores.append(classifier.score(X, Y))
    assert scores[-1] > 0.85
    assert scores[-1] > scores[0]


def test_a_call_need_not_show_all_classes() -> None:
    classifier = PacelineClassifier(random_state=0)
    for number in (2, 0, 1):
        classifier.partial_fit(X[number == Y], Y[number == Y], classes=[0, 1, 2])
    assert classifier.predict_proba(X).shape == (300, 3)


@pytest.mark.parametrize("names", [[0, 1, 2], ["a", "b", "c"]])
def test_labels_are_read_in_pieces(names: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    y = np.sort(Y)  # pieces show different classes
    labels = np.array(names)[y]
    whole = PacelineClassifier(random_state=0).fit(X, labels)
    monkeypatch.setattr(classifiers, "PIECE_ROWS", 60)
    pieces = PacelineClassifier(random_state=0).fit(X, labels)
    assert pieces.classes_.tolist() == whole.classes_.tolist() == names
    assert (pieces.coef_ == whole.coef_).all()
    with pytest.raises(ValueError, match="Unknown label type"):
        pieces.fit(X, np.where(np.arange(300) < 299, 1.0, 0.5))


def test_classes_are_given_first_and_stay() -> None:
    classifier = PacelineClassifier(random_state=0)
    with pytest.raises(ValueError, match="classes must be given in the first call"):
        classifier.partial_fit(X, Y)
    with pytest.raises(ValueError, match="label 2, which is not one of the classes"):
        classifier.partial_fit(X, Y, classes=[0, 1])
    classifier.partial_fit(X, Y, classes=[0, 1, 2])
    with pytest.raises(ValueError, match="in the first call it was"):
        classifier.partial_fit(X, Y, classes=[0, 1])
    with pytest.raises(ValueError, match="5 features"):
        classifier.partial_fit(np.ones((3, 5)), [0, 1, 2])


def test_balanced_weights_need_all_rows() -> None:
    with pytest.raises(ValueError, match="needs all rows at once"):
        PacelineClassifier(class_weight="balanced").partial_fit(X, Y, classes=[0, 1, 2])


def test_one_class_is_not_enough() -> None:
    with pytest.raises(ValueError, match="y has only one class, 'a'"):
        PacelineClassifier().fit(X, ["a"] * 300)
