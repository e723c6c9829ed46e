"""What scores mean to a user: probabilities of classes, classes by their names, numbers."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.errors import UsageError
from paceline.models.losses import Hinge, Logistic, Squared
from paceline.models.multinomial import ClassesOutput
from paceline.models.output import class_labels, class_probabilities, predicted
from paceline.models.sparse import LossOutput
from paceline.models.tasks import MARGINS, NUMBERS, TWO_CLASSES

SCORES = np.array([-1.0, 2.0], np.float32)


def test_two_classes_have_a_column_each() -> None:
    output = LossOutput(TWO_CLASSES, Logistic())
    found = class_probabilities(output, SCORES)
    assert found == pytest.approx(np.stack([1 / (1 + np.exp(SCORES)), 1 / (1 + np.exp(-SCORES))], axis=1))
    assert predicted(output, SCORES, []).tolist() == [0, 1]
    assert predicted(output, SCORES, ["no", "yes"]).tolist() == ["no", "yes"]
    assert class_labels(output, ["3", "7"]).tolist() == [3, 7]


def test_several_classes() -> None:
    output, scores = ClassesOutput(("a", "b", "c")), np.array([[0, 1, 2], [3, 0, 0]], np.float32)
    assert class_probabilities(output, scores).sum(axis=1) == pytest.approx([1, 1])
    assert predicted(output, scores, ["a", "b", "c"]).tolist() == ["c", "a"]
    assert predicted(output, scores, []).tolist() == [2, 0]


def test_numbers_and_margins_have_no_probabilities() -> None:
    numbers = LossOutput(NUMBERS, Squared())
    assert predicted(numbers, SCORES, []).tolist() == SCORES.tolist()
    assert class_labels(numbers, []).tolist() == []
    with pytest.raises(UsageError, match="this model predicts numbers"):
        class_probabilities(numbers, SCORES)
    with pytest.raises(UsageError, match="gives no probabilities"):
        class_probabilities(LossOutput(MARGINS, Hinge()), SCORES)
