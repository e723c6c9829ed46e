"""FTRL-Proximal (McMahan et al., "Ad Click Prediction: a View from the Trenches", KDD 2013).

w = 0 if |z| ≤ λ₁, else −(z − sign(z) λ₁) / ((β + √n) / η + λ₂)
σ = (√(n + g²) − √n) / η;  z ← z + g − σ w;  n ← n + g².  State of a key: z, n; w is never stored.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from paceline.config import OptimizerConfig
from paceline.kernels.rules import Table, optimizer_rule


class Ftrl(NamedTuple):
    """The rule of FTRL-Proximal at one moment; all float32. `rate` is the paper's α."""

    rate: np.float32
    l1: np.float32
    l2: np.float32
    beta: np.float32


WIDTH = 2


def rule_at(settings: OptimizerConfig, rows: int, l1: float, l2: float) -> Ftrl:
    return Ftrl(np.float32(settings.learning_rate), np.float32(l1), np.float32(l2), np.float32(settings.beta))


def weight(rule: Any, table: Table, key: Any) -> Any:
    z = table[WIDTH * key]
    if abs(z) <= rule.l1:
        return np.float32(0)
    return (np.sign(z) * rule.l1 - z) / ((rule.beta + np.sqrt(table[WIDTH * key + 1])) / rule.rate + rule.l2)


def update(rule: Any, table: Table, key: Any, gradient: Any) -> None:
    z, n = table[WIDTH * key], table[WIDTH * key + 1]
    root = np.sqrt(n)
    w = np.float32(0)
    if abs(z) > rule.l1:
        w = (np.sign(z) * rule.l1 - z) / ((rule.beta + root) / rule.rate + rule.l2)
    seen = n + gradient * gradient
    table[WIDTH * key] = z + gradient - (np.sqrt(seen) - root) / rule.rate * w
    table[WIDTH * key + 1] = seen


optimizer_rule(Ftrl, WIDTH, weight, update)
