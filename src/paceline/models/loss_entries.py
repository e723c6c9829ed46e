"""Which losses are there? Each has an entry, which declares what must be known before any code is loaded.

The formulas are in `losses.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from paceline.models.tasks import CLASSES, COUNTS, MARGINS, NUMBERS, TWO_CLASSES, Task

# What a model is trained with if nobody says otherwise, by the kind of its labels.
LOSS_OF_LABELS = {"two-classes": "logistic", "classes": "softmax", "numbers": "squared"}


class LossSetting(NamedTuple):
    """A setting of a loss, `--set loss.NAME=VALUE`: above `above` and below `below`."""

    default: float
    help: str
    above: float = 0.0
    below: float = math.inf


class LossEntry(NamedTuple):
    """The declaration of a loss: what it is for, its own settings, and its rule, "module:class" (`losses.py`).

    `linear`, "module:class", is the linear model under this loss. `scores` says whether a row has one score or one
    per class. Labels of a loss with a `least_label` are not below it. `loss_of_nothing` is the loss of a row with the
    score 0, if it is the same for all labels.
    """

    task: Task
    rule: str
    settings: Mapping[str, LossSetting] = MappingProxyType({})
    linear: str = "paceline.models.linear:LinearModel"
    scores: str = "one"
    least_label: float = -math.inf
    loss_of_nothing: float = 1.0

    @property
    def for_numbers(self) -> bool:
        """Whether labels may be of any size."""
        return "numbers" in self.task.labels


RULES = "paceline.models.losses:"
LOSSES = {
    "logistic": LossEntry(TWO_CLASSES, f"{RULES}Logistic", loss_of_nothing=math.log(2)),
    "squared": LossEntry(NUMBERS, f"{RULES}Squared"),
    "hinge": LossEntry(MARGINS, f"{RULES}Hinge"),
    "squared-hinge": LossEntry(MARGINS, f"{RULES}SquaredHinge"),
    "poisson": LossEntry(COUNTS, f"{RULES}Poisson", least_label=0.0),
    "quantile": LossEntry(
        NUMBERS, f"{RULES}Quantile", {"quantile": LossSetting(0.5, "The share of labels below predictions.", below=1.0)}
    ),
    "huber": LossEntry(
        NUMBERS, f"{RULES}Huber", {"delta": LossSetting(1.0, "Errors above this count linearly, not squared.")}
    ),
    "softmax": LossEntry(
        CLASSES, f"{RULES}CrossEntropy", linear="paceline.models.multinomial:MultinomialModel", scores="classes"
    ),
}
LOSSES_OF_ONE_SCORE = tuple(name for name, entry in LOSSES.items() if entry.scores == "one")
