"""How does a gradient change parameters that take part in every row?

They are one array [1 + memory, values], flat: the values first, then what the optimizer remembers of each. The formulas
are those of the optimizers (`rules.py`), with the number of values as the stride.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.jit import compiled
from paceline.kernels.rules import update

Floats = NDArray[np.float32]


@compiled
def add_to(total: Floats, more: Floats) -> None:
    """total += more."""
    for i in range(total.size):
        total[i] += more[i]


@compiled
def update_range(rule: Any, states: Floats, stride: int, first: int, sums: Floats, count: int,
                 scale: np.float32) -> None:  # fmt: skip
    """Apply `scale` times the first `count` sums to the values from `first` on."""
    for i in range(count):
        update(rule, states, first + i, stride, scale * sums[i])


@compiled
def follow(states: Floats, first: int, moved: Floats, start: int, scale: np.float32) -> None:
    """Values that are not weights, such as averages: from `moved[start]` on, w ← w − scale · moved."""
    for i in range(start, moved.size):
        states[first + i] -= scale * moved[i]
