"""What are the labels of a dataset: two classes, several classes, or numbers?

Parsers deliver labels as the numbers in the source, float32. Which of them are labels, and how a dataset stores them,
is decided only here:

| kind | in the source | in a dataset |
|---|---|---|
| `two-classes` | 0 and 1, or -1 and +1 | uint8, 0 and 1 |
| `classes` | 0, 1, 2, … | uint16 |
| `numbers` | finite numbers | float32 |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.data.limits import LabelKind

MOST_CLASSES = 1 << 16

Numbers = NDArray[np.float32]


class LabelRule(NamedTuple):
    """How labels of one kind are recognised and stored. `words` are for messages: labels are …"""

    dtype: type
    words: str
    hint: str
    accepts: Callable[[Numbers], NDArray[np.bool_]]
    store: Callable[[Numbers], NDArray[Any]]


RULES: dict[LabelKind, LabelRule] = {
    "two-classes": LabelRule(
        np.uint8,
        "0 and 1, or -1 and +1",
        "`--labels classes` reads class numbers, `--labels numbers` any numbers",
        lambda numbers: (numbers == 0) | (np.abs(numbers) == 1),
        lambda numbers: (numbers == 1).view(np.uint8),
    ),
    "classes": LabelRule(
        np.uint16,
        f"whole numbers from 0 to {MOST_CLASSES - 1}",
        "number the classes from 0; `--labels numbers` reads any numbers",
        lambda numbers: (numbers >= 0) & (numbers < MOST_CLASSES) & (numbers == np.floor(numbers)),
        lambda numbers: numbers.astype(np.uint16),
    ),
    "numbers": LabelRule(np.float32, "finite numbers", "check the row", np.isfinite, lambda numbers: numbers),
}


class Labels(msgspec.Struct, frozen=True):
    """The labels of a dataset, as its manifest describes them: `names` are those of the classes, none for numbers.

    >>> Labels(), Labels.of("classes", 3)
    (Labels(kind='two-classes', names=('0', '1')), Labels(kind='classes', names=('0', '1', '2')))
    """

    kind: LabelKind = "two-classes"
    names: tuple[str, ...] = ("0", "1")

    @staticmethod
    def of(kind: LabelKind, classes: int) -> Labels:
        """Labels of this kind; `classes` counts those found, and matters only for `classes`."""
        if kind == "two-classes":
            return Labels()
        return Labels(kind, tuple(str(number) for number in range(classes)) if kind == "classes" else ())

    @property
    def dtype(self) -> np.dtype[Any]:
        """How blocks store these labels."""
        return np.dtype(RULES[self.kind].dtype)

    @property
    def classes(self) -> int:
        """The number of classes; 0 for numbers."""
        return len(self.names)


def first_negatives(numbers: Numbers, rows: NDArray[np.int64]) -> dict[int, int]:
    """The first of `rows` that has the label 0, and the first that has -1, if any.

    >>> first_negatives(np.array([1, -1, -1], np.float32), np.array([4, 7, 8]))
    {-1: 7}
    """
    found = {label: numbers == label for label in (0, -1)}
    return {label: int(rows[mask.argmax()]) for label, mask in found.items() if mask.any()}
