"""Where do parameters live that take part in every row? In an array [width, values].

The values come first, then what the optimizer remembers about each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.kernels.dense import add_to, follow, update_range
from paceline.parameters.layout import DenseLayout
from paceline.parameters.store import Floats, Numbers, check_memory


class DenseStore:
    """The values from `first` on, `size` of them, and what the optimizer remembers."""

    dim = 1

    def __init__(self, layout: DenseLayout, first: int = 0, size: int = -1, memory: Floats | None = None) -> None:
        """`memory` is zeros to keep them in, if other processes are to see them."""
        self.layout = layout
        self.first = first
        self.size = layout.num_values - first if size < 0 else size
        self.width = layout.width
        self._flat: Floats = np.zeros(self.width * self.size, np.float32) if memory is None else memory
        self._planes = self._flat.reshape(self.width, self.size)

    @property
    def values(self) -> Floats:
        return self._flat[: self.size]

    @property
    def states(self) -> Floats:
        return self._planes.T

    def begin(self, values: Floats | float = 0.0) -> None:
        self._planes[0], self._planes[1:] = values, 0

    def load(self, start: int, states: Floats) -> None:
        self._planes[:, start : start + len(states)] = states.T

    def part(self, start: int, stop: int) -> Floats:
        return np.ascontiguousarray(self._planes[:, start:stop].T)

    def read(self, start: int, count: int, trained: int) -> Floats:
        return self.values[start : start + count]

    def make_sums(self, count: int) -> Floats:
        return np.zeros((count, self.size), np.float32)

    def gather(self, start: int, out: Numbers) -> None:
        np.copyto(np.asarray(out), self.values[start : start + len(out)])

    def apply(self, start: int, sums: Numbers, rows: int, trained: int) -> None:
        if not rows:
            return
        given, scale = np.asarray(sums), np.float32(1 / rows)
        count = min(len(given), max(0, self.layout.num_trained - self.first - start))
        if count:
            rule = self.layout.rule_at(trained)
            update_range(rule, self._flat, self.size, start, given, count, scale)
        if count < len(given):
            follow(self._flat, start, given, count, scale)

    def fold(self, pushes: Sequence[tuple[int, Numbers]], rows: int, trained: int) -> None:
        if not rows:
            return
        (start, total), *others = pushes
        for _, more in others:
            add_to(np.asarray(total), np.asarray(more))
        self.apply(start, total, rows, trained)

    def warm_up(self) -> None:
        nothing = np.zeros(0, np.float32)
        add_to(nothing, nothing)
        follow(self._flat, 0, nothing, 0, np.float32(1))
        rule = self.layout.rule_at(0)
        update_range(rule, self._flat, self.size, 0, nothing, 0, np.float32(1))
        # Gradients of other processes are memory that this one may only read.
        nothing.flags.writeable = False
        update_range(rule, self._flat, self.size, 0, nothing, 0, np.float32(1))


def check_room(needed_bytes: int, num_values: int) -> None:
    """Refuse a model for which there is not enough memory."""
    hint = "fewer --workers, a smaller model, or --optimizer sgd, which needs the least"
    check_memory(needed_bytes, f"{num_values:,} values", hint)
