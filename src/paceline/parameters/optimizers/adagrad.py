"""AdaGrad (Duchi, Hazan and Singer, 2011): each key has its own rate, falling with the gradients it has seen.

g ← g + λ₂ w;  s ← s + g²;  η_k = η / (√s + ε);  w ← S(w − η_k g, η_k λ₁).  State of a key: w, s.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from paceline.config import OptimizerConfig
from paceline.kernels.rules import Table, optimizer_rule


class AdaGrad(NamedTuple):
    """The rule of AdaGrad at one moment; all float32."""

    rate: np.float32
    l1: np.float32
    l2: np.float32
    epsilon: np.float32


WIDTH = 2


def rule_at(settings: OptimizerConfig, rows: int, l1: float, l2: float) -> AdaGrad:
    return AdaGrad(np.float32(settings.learning_rate), np.float32(l1), np.float32(l2), np.float32(settings.epsilon))


def weight(rule: Any, table: Table, key: Any) -> Any:
    return table[WIDTH * key]


def update(rule: Any, table: Table, key: Any, gradient: Any) -> None:
    w = table[WIDTH * key]
    g = gradient + rule.l2 * w
    s = table[WIDTH * key + 1] + g * g
    rate = rule.rate / (np.sqrt(s) + rule.epsilon)
    w -= rate * g
    if rule.l1 > 0:
        w = np.sign(w) * max(abs(w) - rate * rule.l1, np.float32(0))
    table[WIDTH * key] = w
    table[WIDTH * key + 1] = s


optimizer_rule(AdaGrad, WIDTH, weight, update)
