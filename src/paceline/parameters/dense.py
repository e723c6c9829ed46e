"""Where do parameters live that take part in every row? In arrays [width, values]: the values, then what the optimizer
remembers of each.
"""

from __future__ import annotations

import numpy as np
import psutil
from numpy.typing import NDArray

from paceline.errors import ConfigError
from paceline.kernels.dense import add_to, follow, update_range
from paceline.parameters.layout import DenseLayout

Floats = NDArray[np.float32]


class DenseStore:
    """The values from `first` on, `size` of them, and what the optimizer remembers."""

    dim = 1

    def __init__(self, layout: DenseLayout, first: int = 0, size: int = -1, memory: Floats | None = None) -> None:
        """`memory` is zeros to keep them in, where other processes are to see them."""
        self.layout = layout
        self.first = first
        self.size = layout.num_values - first if size < 0 else size
        self.width = layout.width
        if memory is None:
            memory = np.zeros(self.width * self.size, np.float32)
        self._flat: Floats = memory
        self._planes = memory.reshape(self.width, self.size)
        self._copy: Floats = np.empty((0, self.width), np.float32)

    @property
    def values(self) -> Floats:
        """The values; a view."""
        return self._flat[: self.size]

    @property
    def states(self) -> Floats:
        """As checkpoints have them, [values, width]; shares memory."""
        return self._planes.T

    def begin(self, values: Floats | float = 0.0) -> None:
        """Let the store be as a run begins, with these values."""
        self._planes[0], self._planes[1:] = values, 0

    def load(self, start: int, states: Floats) -> None:
        """Put states [n, width] in place from value `start` on."""
        self._planes[:, start : start + len(states)] = states.T

    def part(self, start: int, stop: int) -> Floats:
        """States [n, width] of the values from `start` to `stop`, as they go over a wire."""
        return np.ascontiguousarray(self._planes[:, start:stop].T)

    def read(self, start: int, count: int, rows: int) -> Floats:
        """The values from `start` on, after any number of rows; a view."""
        return self.values[start : start + count]

    def set_aside(self) -> None:
        """Copy all states, for `copied`."""
        self._copy = self._planes.T.copy()

    def copied(self, start: int, stop: int) -> Floats:
        """States [n, width] of the last copy; a view."""
        return self._copy[start:stop]

    def copy_of_values(self) -> Floats:
        return self.values.copy()

    def make_sums(self, count: int) -> Floats:
        """Room for this many gradients."""
        return np.zeros((count, self.size), np.float32)

    def copy_values_to(self, own: Floats) -> None:
        np.copyto(own, self.values)

    def add(self, total: Floats, more: Floats, start: int, stop: int) -> None:
        """Add a gradient to another, from `start` to `stop`."""
        add_to(total[start:stop], more[start:stop])

    def apply(self, start: int, sums: Floats, rows: int, trained: int) -> None:
        """Update the values from `start` on by the mean over the rows of gradients whose `sums` are given."""
        count = min(len(sums), max(0, self.layout.num_trained - self.first - start))
        scale = np.float32(1 / rows)
        if count:
            rule = self.layout.rule_at(trained)
            update_range(rule, self._flat, self.size, start, sums, count, scale)
        if count < len(sums):
            follow(self._flat, start, sums, count, scale)

    def warm_up(self) -> None:
        """Load or compile the loops; changes nothing."""
        nothing = np.zeros(0, np.float32)
        self.add(nothing, nothing, 0, 0)
        follow(self._flat, 0, nothing, 0, np.float32(1))
        rule = self.layout.rule_at(0)
        update_range(rule, self._flat, self.size, 0, nothing, 0, np.float32(1))
        # And of gradients that this process may only read.
        nothing.flags.writeable = False
        update_range(rule, self._flat, self.size, 0, nothing, 0, np.float32(1))


def check_room(needed_bytes: int, num_values: int) -> None:
    """Refuse a model for which there is not enough memory."""
    available = psutil.virtual_memory().available
    if needed_bytes > available:
        raise ConfigError(
            f"a model of {num_values:,} values needs {needed_bytes / 1e9:.1f} GB, {available / 1e9:.1f} GB are free",
            "fewer --workers, a smaller model, or --optimizer sgd, which needs the least",
        )
