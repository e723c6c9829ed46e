"""How does a gradient change all values of a dense model? One loop an optimizer, over a range of them.

`planes` is float32 [width, values]: the weights first, then what the optimizer remembers of each. Values from
`num_trained` on are no weights but what workers keep count of, such as the averages of batch normalisation: theirs is
no gradient but how far they have moved, and they follow it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.jit import compiled

Floats = NDArray[np.float32]
Planes = NDArray[np.float32]
ONE = np.float32(1)


@compiled
def add_to(total: Floats, more: Floats) -> None:
    """total += more."""
    for i in range(total.size):
        total[i] += more[i]


@compiled
def follow(weights: Floats, moved: Floats, start: int, stop: int, scale: np.float32) -> None:
    """Values that are no weights: w ← w − scale · moved."""
    for i in range(start, stop):
        weights[i] -= scale * moved[i]


@compiled
def descend(weights: Floats, sums: Floats, start: int, stop: int, scale: np.float32, rate: np.float32,
            l2: np.float32) -> None:  # fmt: skip
    """Gradient descent: w ← w − η (g + λ₂ w), where g = scale · sums."""
    for i in range(start, stop):
        w = weights[i]
        weights[i] = w - rate * (scale * sums[i] + l2 * w)


@compiled
def descend_with_momentum(weights: Floats, speeds: Floats, sums: Floats, start: int, stop: int, scale: np.float32,
                          rate: np.float32, l2: np.float32, momentum: np.float32) -> None:  # fmt: skip
    """v ← μ v + g + λ₂ w;  w ← w − η v."""
    for i in range(start, stop):
        w = weights[i]
        v = momentum * speeds[i] + (scale * sums[i] + l2 * w)
        speeds[i] = v
        weights[i] = w - rate * v


@compiled
def descend_by_adagrad(weights: Floats, squares: Floats, sums: Floats, start: int, stop: int, scale: np.float32,
                       rate: np.float32, l2: np.float32, epsilon: np.float32) -> None:  # fmt: skip
    """g ← g + λ₂ w;  s ← s + g²;  w ← w − η g / (√s + ε)."""
    for i in range(start, stop):
        w = weights[i]
        g = scale * sums[i] + l2 * w
        s = squares[i] + g * g
        squares[i] = s
        weights[i] = w - rate * g / (np.sqrt(s) + epsilon)


@compiled
def descend_by_adam(weights: Floats, means: Floats, squares: Floats, sums: Floats, start: int, stop: int,
                    scale: np.float32, rate: np.float32, l2: np.float32, beta1: np.float32, beta2: np.float32,
                    epsilon: np.float32, root: np.float32) -> None:  # fmt: skip
    """g ← g + λ₂ w;  m ← β₁ m + (1 − β₁) g;  s ← β₂ s + (1 − β₂) g²;  w ← w − η m / (√s / root + ε).

    `rate` has been corrected for the mean's late start already, `root` corrects for that of the squares.
    """
    for i in range(start, stop):
        w = weights[i]
        g = scale * sums[i] + l2 * w
        m = beta1 * means[i] + (ONE - beta1) * g
        s = beta2 * squares[i] + (ONE - beta2) * (g * g)
        means[i] = m
        squares[i] = s
        weights[i] = w - rate * m / (np.sqrt(s) / root + epsilon)
