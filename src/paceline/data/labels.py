"""What are the labels of a dataset: two classes, several classes, or numbers?

Parsers deliver labels as the numbers in the source, float32. Which of them are labels, and how a dataset stores them,
is decided only here:

| kind | in the source | in a dataset |
|---|---|---|
| `two-classes` | 0 and 1, or -1 and +1, or two names | uint8, 0 and 1 |
| `classes` | whole numbers, or names | uint16, 0, 1, 2, … |
| `numbers` | finite numbers | float32 |

Where labels are names, parsers deliver the names of a chunk and, as labels, positions among them. `ClassNumbers` says
which class has which number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.data.limits import LabelKind
from paceline.errors import DataError, printable

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

    def __post_init__(self) -> None:
        counts = {"two-classes": (2, 2), "classes": (1, MOST_CLASSES), "numbers": (0, 0)}
        least, most = counts[self.kind]
        if not least <= len(self.names) <= most:
            raise ValueError(f"labels of kind `{self.kind}` with {len(self.names)} names")

    @property
    def are_named(self) -> bool:
        """Whether classes have names other than their numbers."""
        return self.names != tuple(str(number) for number in range(len(self.names)))

    def shown(self, labels: NDArray[Any]) -> NDArray[Any]:
        """Stored labels as a user knows them: the names of their classes, if they have any.

        >>> Labels("classes", ("cat", "dog")).shown(np.array([1, 0], np.uint16)).tolist()
        ['dog', 'cat']
        """
        return np.array(self.names)[labels] if self.are_named else labels

    def numbered_as(self, names: Sequence[str]) -> NDArray[Any]:
        """For each class, its number among other `names`. `DataError` if it is not among them.

        >>> Labels("classes", ("dog", "cat")).numbered_as(["ant", "cat", "dog"]).tolist()
        [2, 1]
        """
        numbers = {name: number for number, name in enumerate(names)}
        unknown = [name for name in self.names if name not in numbers]
        if unknown:
            raise DataError(
                f"the class `{printable(unknown[0])}` is not one of the {len(names)} that the model knows",
                "train on rows of all classes",
            )
        return np.array([numbers[name] for name in self.names], np.int64)


class ClassNumbers:
    """Which class has which number. Classes that occur in the first rows are sorted by name, numbers before others;
    classes that occur later follow in the order in which they appear.

    >>> classes = ClassNumbers(4)
    >>> classes.number(["10", "9", "cat"]).tolist(), classes.number(["ant", "9", "dog"]).tolist()
    ([1, 0, 2], [3, 0, -1])
    """

    def __init__(self, most: int) -> None:
        self.names: list[str] = []
        self._most = most
        self._numbers: dict[str, int] = {}

    def number(self, names: Sequence[str], *, may_grow: bool = True) -> NDArray[np.int64]:
        """The numbers of classes, which are listed in the order of their first rows; -1 for those that have none,
        because there are as many as can be, or because no class may be added.
        """
        new = [name for name in names if name not in self._numbers][: self._most - len(self.names)]
        if may_grow:
            new = new if self.names else sorted(new, key=_sort_key)
            self._numbers |= {name: number for number, name in enumerate(new, len(self.names))}
            self.names += new
        return np.array([self._numbers.get(name, -1) for name in names], np.int64)


def _sort_key(name: str) -> tuple[int, int, str]:
    is_number = name.isascii() and name.isdigit()
    return (0, int(name), "") if is_number else (1, 0, name)


def first_negatives(numbers: Numbers, rows: NDArray[np.int64]) -> dict[int, int]:
    """The first of `rows` that has the label 0, and the first that has -1, if any.

    >>> first_negatives(np.array([1, -1, -1], np.float32), np.array([4, 7, 8]))
    {-1: 7}
    """
    found = {label: numbers == label for label in (0, -1)}
    return {label: int(rows[mask.argmax()]) for label, mask in found.items() if mask.any()}
