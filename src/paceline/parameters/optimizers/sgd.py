"""Stochastic gradient descent: w ← S(w − η (g + λ₂ w), η λ₁), where S shrinks towards zero (L1 by proximal step).

S(w, t) = sign(w) · max(|w| − t, 0), so L1 makes exact zeros. State of a key: w.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from paceline.config import OptimizerConfig
from paceline.kernels.rules import Table, optimizer_rule


class Sgd(NamedTuple):
    """The rule of plain gradient descent at one moment; all float32."""

    rate: np.float32
    l1: np.float32
    l2: np.float32


WIDTH = 1


def rate_at(settings: OptimizerConfig, rows: int) -> float:
    """The learning rate when `rows` rows have been trained on.

    >>> rate_at(OptimizerConfig(name="sgd", learning_rate=0.5, decay_rows=100, decay_power=1.0), 100)
    0.25
    """
    if not settings.decay_rows:
        return settings.learning_rate
    return float(settings.learning_rate * (1 + rows / settings.decay_rows) ** -settings.decay_power)


def rule_at(settings: OptimizerConfig, rows: int, l1: float, l2: float) -> Sgd:
    return Sgd(np.float32(rate_at(settings, rows)), np.float32(l1), np.float32(l2))


def weight(rule: Any, table: Table, key: Any) -> Any:
    return table[key]


def update(rule: Any, table: Table, key: Any, gradient: Any) -> None:
    w = table[key]
    w -= rule.rate * (gradient + rule.l2 * w)
    if rule.l1 > 0:
        w = np.sign(w) * max(abs(w) - rule.rate * rule.l1, np.float32(0))
    table[key] = w


optimizer_rule(Sgd, WIDTH, weight, update)
