"""Stochastic gradient descent: w ← S(w − η (g + λ₂ w), η λ₁), where S shrinks towards zero (L1 by proximal step).

S(w, t) = sign(w) · max(|w| − t, 0), so L1 makes exact zeros. With momentum μ: v ← μ v + g + λ₂ w;  w ← w − η v.
State of a parameter: w, and v with momentum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from paceline.parameters.optimizers import Formula, Setting, Updates

if TYPE_CHECKING:
    from paceline.kernels.rules import Table


class Sgd(NamedTuple):
    """The rule of plain gradient descent at one moment; all float32."""

    rate: np.float32
    l1: np.float32
    l2: np.float32


class Momentum(NamedTuple):
    """The rule of gradient descent with momentum at one moment; all float32."""

    rate: np.float32
    l2: np.float32
    momentum: np.float32


def rule_at(rate: float, l1: float, l2: float, update: int, momentum: float) -> Sgd | Momentum:
    if momentum:
        return Momentum(*map(np.float32, (rate, l2, momentum)))
    return Sgd(*map(np.float32, (rate, l1, l2)))


def update(rule: Any, table: Table, at: Any, stride: Any, gradient: Any) -> None:
    w = table[at]
    w -= rule.rate * (gradient + rule.l2 * w)
    if rule.l1 > 0:
        w = np.sign(w) * max(abs(w) - rule.rate * rule.l1, np.float32(0))
    table[at] = w


def update_with_momentum(rule: Any, table: Table, at: Any, stride: Any, gradient: Any) -> None:
    w = table[at]
    v = rule.momentum * table[at + stride] + (gradient + rule.l2 * w)
    table[at + stride] = v
    table[at] = w - rule.rate * v


def step_size(rule: Any, table: Table, at: Any, stride: Any) -> Any:
    return rule.rate


FORMULA = Formula(
    rule_at,
    {
        Sgd: Updates(0, update, step_size=step_size, on_gpu="paceline.torch.optimizers:sgd", on_gpu_by_key="sgd"),
        Momentum: Updates(1, update_with_momentum, on_gpu="paceline.torch.optimizers:momentum"),
    },
    {"momentum": Setting(0.0, "How much of the last step each update repeats (μ).", below=1.0, dense_only=True)},
    decays=True,
)
