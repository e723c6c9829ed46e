"""AdaGrad (Duchi, Hazan and Singer, 2011): each parameter has its own rate, which falls with the gradients it has seen.

g ← g + λ₂ w;  s ← s + g²;  η_k = η / (√s + ε);  w ← S(w − η_k g, η_k λ₁).  State of a parameter: w, s.

Row-wise, all columns of a key share one sum, s ← s + mean(g²), which saves memory (Mudigere et al., 2022, "Software-
Hardware Co-design for Fast and Scalable Training of Deep Learning Recommendation Models"). It has no L1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from paceline.parameters.optimizers import Formula, Setting, Updates

if TYPE_CHECKING:
    from paceline.kernels.rules import Table


class AdaGrad(NamedTuple):
    """The rule of AdaGrad at one moment; all float32."""

    rate: np.float32
    l1: np.float32
    l2: np.float32
    epsilon: np.float32


class RowWiseAdaGrad(NamedTuple):
    """The rule of row-wise AdaGrad at one moment; all float32."""

    rate: np.float32
    l2: np.float32
    epsilon: np.float32


def rule_at(
    rate: float, l1: float, l2: float, update: int, epsilon: float, row_wise: float
) -> AdaGrad | RowWiseAdaGrad:
    if row_wise:
        return RowWiseAdaGrad(*map(np.float32, (rate, l2, epsilon)))
    return AdaGrad(*map(np.float32, (rate, l1, l2, epsilon)))


def update(rule: Any, table: Table, at: Any, stride: Any, gradient: Any) -> None:
    w = table[at]
    g = gradient + rule.l2 * w
    s = table[at + stride] + g * g
    rate = rule.rate / (np.sqrt(s) + rule.epsilon)
    w -= rate * g
    if rule.l1 > 0:
        w = np.sign(w) * max(abs(w) - rate * rule.l1, np.float32(0))
    table[at] = w
    table[at + stride] = s


def update_row_wise(rule: Any, table: Any, at: Any, stride: Any, gradient: Any) -> None:
    w = table[at]
    g = gradient + rule.l2 * w
    s = table.numbers[at + stride] + np.sum(g * g) / np.float32(len(table.lanes))
    table[at] = w - rule.rate / (np.sqrt(s) + rule.epsilon) * g
    table.numbers[at + stride] = s


def step_size(rule: Any, table: Table, at: Any, stride: Any) -> Any:
    return rule.rate / (np.sqrt(table[at + stride]) + rule.epsilon)


FORMULA = Formula(
    rule_at,
    {
        AdaGrad: Updates(
            1, update, step_size=step_size, on_gpu="paceline.torch.optimizers:adagrad", on_gpu_by_key="adagrad"
        ),
        RowWiseAdaGrad: Updates(1, update_row_wise, step_size=step_size, shared=True, on_gpu_by_key="row-wise"),
    },
    {
        "epsilon": Setting(1e-6, "Added to the root of the summed squares (ε).", least=1e-30),
        "row_wise": Setting(0.0, "Whether the columns of a key share one sum of squares.", of_model=True),
    },
)
