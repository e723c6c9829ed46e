"""What do the scores of a trained model mean to a user: probabilities of classes, classes, or numbers?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import UsageError
from paceline.models.model import Floats, Output
from paceline.models.tasks import CLASSES, TWO_CLASSES


def class_probabilities(output: Output, scores: Floats) -> Floats:
    """The probability of each class [rows, classes]."""
    found = output.probabilities(scores)
    if output.task.name == CLASSES.name:
        return found
    if output.task.column == TWO_CLASSES.column:
        return np.stack([1 - found, found], axis=1)
    if output.task.name == TWO_CLASSES.name:
        raise UsageError("the loss of this model gives no probabilities", "`decision_function` gives its scores")
    raise UsageError("this model predicts numbers, which have no probabilities", "`predict` gives the numbers")


def class_labels(output: Output, names: Sequence[str]) -> NDArray[Any]:
    """What classes are called, by number: their names, or else the numbers; empty if labels are numbers."""
    if output.task.name not in (CLASSES.name, TWO_CLASSES.name):
        return np.zeros(0, np.int64)
    size = 2 if output.task.name == TWO_CLASSES.name else 0
    count = len(names) or size or output.num_classes
    numbers = np.arange(count)
    if names and list(names) != [str(number) for number in numbers]:
        return np.array([int(name) for name in names]) if all(map(_is_number, names)) else np.array(names)
    return numbers


def predicted(output: Output, scores: Floats, names: Sequence[str]) -> NDArray[Any]:
    """The class of each row, as its users call it, or a number."""
    if output.task.name == CLASSES.name:
        best = scores.argmax(axis=1)
    elif output.task.name == TWO_CLASSES.name:
        best = (scores > 0).astype(np.int64)
    else:
        return output.probabilities(scores)
    labels = class_labels(output, names)
    found: NDArray[Any] = labels[best] if len(labels) > best.max(initial=0) else best
    return found


def _is_number(name: str) -> bool:
    return name.isascii() and name.removeprefix("-").isdigit()
