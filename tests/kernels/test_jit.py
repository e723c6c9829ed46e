"""A loop's sums are added as they are written, no matter which loop was compiled first."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from paceline.kernels.jit import compiled, inlined, reassociated
from paceline.kernels.rules import optimizer_rule, update

# Its square rounds to 1 + 2⁻²⁶: what is left over is 0, or 2⁻⁵⁴ where product and sum are rounded once, as processors
# with fused operations do it in a loop that may reassociate.
NEAR_ONE = 1 + 2.0**-27


@compiled
def left_over(x: float) -> float:
    return x * x - (1 + 2.0**-26)


@inlined
def left_over_inlined(x: float) -> float:
    return x * x - (1 + 2.0**-26)


@reassociated
def call_both(x: float) -> float:
    return left_over(x) + left_over_inlined(x)


def test_called_first_by_a_loop_that_may_reassociate() -> None:
    assert call_both(NEAR_ONE) == 0
    assert left_over(NEAR_ONE) == 0
    assert left_over_inlined(NEAR_ONE) == 0


class Keep(NamedTuple):
    """A rule that replaces a state by what is left over of it."""

    scale: np.float64


def test_an_optimizer_called_first_by_a_loop_that_may_reassociate() -> None:
    def keep(rule: Any, table: Any, at: Any, stride: Any, gradient: Any) -> None:
        table[at] = table[at] * gradient - rule.scale

    optimizer_rule(Keep, 0, keep)

    @reassociated
    def liberal(rule: Any, table: Any) -> None:
        update(rule, table, 0, 1, NEAR_ONE)

    @compiled
    def strict(rule: Any, table: Any) -> None:
        update(rule, table, 0, 1, NEAR_ONE)

    for loop in (liberal, strict):
        table = np.array([NEAR_ONE])
        loop(Keep(np.float64(1 + 2.0**-26)), table)
        assert table[0] == 0
