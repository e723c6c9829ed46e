"""FTRL-Proximal (McMahan et al., "Ad Click Prediction: a View from the Trenches", KDD 2013).

w = 0 if |z| ≤ λ₁, else −(z − sign(z) λ₁) / ((β + √n) / η + λ₂)
σ = (√(n + g²) − √n) / η;  z ← z + g − σ w;  n ← n + g².  State of a parameter: z, n; w is never stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from paceline.parameters.optimizers import Formula, Setting, Updates

if TYPE_CHECKING:
    from paceline.kernels.rules import Table

ONE = np.float32(1)


class Ftrl(NamedTuple):
    """The rule of FTRL-Proximal at one moment; all float32. `rate` is the paper's α."""

    rate: np.float32
    l1: np.float32
    l2: np.float32
    beta: np.float32


def rule_at(rate: float, l1: float, l2: float, update: int, beta: float) -> Ftrl:
    return Ftrl(*map(np.float32, (rate, l1, l2, beta)))


def weight(rule: Any, table: Table, at: Any, stride: Any) -> Any:
    z = table[at]
    if abs(z) <= rule.l1:
        return np.float32(0)
    return (np.sign(z) * rule.l1 - z) / ((rule.beta + np.sqrt(table[at + stride])) / rule.rate + rule.l2)


def update(rule: Any, table: Table, at: Any, stride: Any, gradient: Any) -> None:
    z, n = table[at], table[at + stride]
    root = np.sqrt(n)
    w = np.float32(0)
    if abs(z) > rule.l1:
        w = (np.sign(z) * rule.l1 - z) / ((rule.beta + root) / rule.rate + rule.l2)
    seen = n + gradient * gradient
    table[at] = z + gradient - (np.sqrt(seen) - root) / rule.rate * w
    table[at + stride] = seen


def step_size(rule: Any, table: Table, at: Any, stride: Any) -> Any:
    return ONE / ((rule.beta + np.sqrt(table[at + stride])) / rule.rate + rule.l2)


def state_of(rule: Ftrl, value: Any) -> Any:
    return -value * float(rule.beta / rule.rate + rule.l2) - np.sign(value) * float(rule.l1)


FORMULA = Formula(
    rule_at,
    {Ftrl: Updates(1, update, weight, step_size, on_gpu_by_key="ftrl")},
    {"beta": Setting(1.0, "Keeps the first updates of a parameter small (β).")},
    state_of=state_of,
)
