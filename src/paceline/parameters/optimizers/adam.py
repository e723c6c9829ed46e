"""Adam (Kingma and Ba, 2015): the mean of past gradients, over the root of the mean of their squares.

g ← g + λ₂ w;  m ← β₁ m + (1 − β₁) g;  s ← β₂ s + (1 − β₂) g²
w ← w − η / (1 − β₁ᵗ) · m / (√s / √(1 − β₂ᵗ) + ε), in update t.  State of a parameter: w, m, s.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from paceline.parameters.optimizers import Formula, Setting, Updates

if TYPE_CHECKING:
    from paceline.kernels.rules import Table


class Adam(NamedTuple):
    """The rule of Adam in one update; all float32. `rate` and `root` are corrected for the late start of the means."""

    rate: np.float32
    l2: np.float32
    beta1: np.float32
    beta2: np.float32
    epsilon: np.float32
    root: np.float32


ONE = np.float32(1)


def rule_at(rate: float, l1: float, l2: float, update: int, epsilon: float, beta1: float, beta2: float) -> Adam:
    corrected, root = rate / (1 - beta1**update), math.sqrt(1 - beta2**update)
    return Adam(*map(np.float32, (corrected, l2, beta1, beta2, epsilon, root)))


def update(rule: Any, table: Table, at: Any, stride: Any, gradient: Any) -> None:
    w = table[at]
    g = gradient + rule.l2 * w
    m = rule.beta1 * table[at + stride] + (ONE - rule.beta1) * g
    s = rule.beta2 * table[at + 2 * stride] + (ONE - rule.beta2) * (g * g)
    table[at + stride] = m
    table[at + 2 * stride] = s
    table[at] = w - rule.rate * m / (np.sqrt(s) / rule.root + rule.epsilon)


FORMULA = Formula(
    rule_at,
    {Adam: Updates(2, update, on_gpu="paceline.torch.optimizers:adam")},
    {
        "epsilon": Setting(1e-6, "Added to the root of the mean square (ε).", least=1e-30),
        "beta1": Setting(0.9, "How much of the mean gradient each update keeps (β₁).", below=1.0),
        "beta2": Setting(0.999, "How much of the mean square each update keeps (β₂).", below=1.0),
    },
)
