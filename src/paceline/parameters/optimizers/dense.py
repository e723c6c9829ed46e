"""How all values of a dense model change at once: sgd (with momentum), adagrad and adam.

The states of a model are planes, float32 [width, values]: its values first, then what the optimizer remembers of each.
All begin as zeros but the values themselves.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.config import OptimizerConfig
from paceline.kernels import dense as kernels
from paceline.parameters.optimizers.sgd import rate_at

Floats = NDArray[np.float32]


def num_planes(settings: OptimizerConfig) -> int:
    """How many numbers there are of each value."""
    if settings.name == "sgd":
        return 2 if settings.momentum else 1
    return {"adagrad": 2, "adam": 3}[settings.name]


class UpdateCount(NamedTuple):
    """Tells how many updates there have been: an epoch of `rows` has one for every `rows_an_update`, and one for what
    is left.
    """

    rows: int
    rows_an_update: int

    def number(self, trained: int) -> int:
        """The number of the update after so many rows, from 1.

        >>> count = UpdateCount(10, 4)
        >>> [count.number(trained) for trained in (0, 4, 8, 10, 14)]
        [1, 2, 3, 4, 5]
        """
        epoch, rest = divmod(trained, self.rows)
        return epoch * -(-self.rows // self.rows_an_update) + rest // self.rows_an_update + 1


# A rule's loop takes as many planes as it has.
loops: Any = kernels


class DenseRule:
    """An optimizer's update, for the first `num_trained` values; those behind follow how far they have moved."""

    def __init__(self, settings: OptimizerConfig, num_trained: int, count: UpdateCount) -> None:
        self._settings = settings
        self._num_trained = num_trained
        self._count = count

    def apply(self, planes: Floats, sums: Floats, rows: int, trained: int, first: int = 0) -> None:
        """Update `planes` [width, n], which hold the values from `first` on, by the mean over the rows of gradients
        whose `sums` [n] are given, after `trained` rows.
        """
        size = planes.shape[1]
        stop = min(size, max(0, self._num_trained - first))
        scale = np.float32(1 / rows)
        if stop:
            self._descend(planes, sums, stop, scale, trained)
        if stop < size:
            kernels.follow(planes[0], sums, stop, size, scale)

    def _descend(self, planes: Floats, sums: Floats, stop: int, scale: np.float32, trained: int) -> None:
        settings = self._settings
        rate, l2 = rate_at(settings, trained), np.float32(settings.l2)
        given = (*planes, sums, 0, stop, scale)
        if settings.name == "adagrad":
            loops.descend_by_adagrad(*given, np.float32(rate), l2, np.float32(settings.epsilon))
        elif settings.name == "adam":
            update = self._count.number(trained)
            loops.descend_by_adam(
                *given, np.float32(rate / (1 - settings.beta1**update)), l2, np.float32(settings.beta1),
                np.float32(settings.beta2), np.float32(settings.epsilon),
                np.float32(math.sqrt(1 - settings.beta2**update)),
            )  # fmt: skip
        elif settings.momentum:
            loops.descend_with_momentum(*given, np.float32(rate), l2, np.float32(settings.momentum))
        else:
            loops.descend(*given, np.float32(rate), l2)
