"""Signum (Bernstein et al., 2018): the sign of the mean of past gradients, as someone would add it to paceline.

m ← β m + (1 − β) g;  w ← w − η sign(m).  State of a parameter: w, m.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from paceline.parameters.optimizers import Formula, Setting, Updates

if TYPE_CHECKING:
    from paceline.kernels.rules import Table


class Signum(NamedTuple):
    """The rule of Signum at one moment; all float32."""

    rate: np.float32
    inertia: np.float32


def rule_at(rate: float, l1: float, l2: float, update: int, inertia: float) -> Signum:
    return Signum(np.float32(rate), np.float32(inertia))


def update(rule: Any, table: Table, at: Any, stride: Any, gradient: Any) -> None:
    m = rule.inertia * table[at + stride] + (np.float32(1) - rule.inertia) * gradient
    table[at + stride] = m
    table[at] -= rule.rate * np.sign(m)


FORMULA = Formula(
    rule_at,
    {Signum: Updates(1, update)},
    {"inertia": Setting(0.9, "How much of the mean gradient each update keeps (β).", below=1.0)},
)
