"""How do kernels on a GPU call a loss? By its name, which the compiler knows. `models/losses.py` has the formulas."""

from __future__ import annotations

from typing import Any, NamedTuple

from paceline.models.losses import (
    ClassWeighted,
    Hinge,
    Huber,
    Logistic,
    Poisson,
    Quantile,
    Squared,
    SquaredHinge,
)
from paceline.torch.sparse.triton_ import tl, triton

NAMES = {
    Logistic: "logistic", Squared: "squared", Hinge: "hinge", SquaredHinge: "squared-hinge", Poisson: "poisson",
    Quantile: "quantile", Huber: "huber",
}  # fmt: skip
FAR = tl.constexpr(4.0)
LARGEST_LOG = tl.constexpr(60.0)


class LossNumbers(NamedTuple):
    """A loss's only setting, if it has one, and the weights of the labels 0 and above."""

    setting: float
    negative: float = 1.0
    positive: float = 1.0


def loss_for_kernels(rule: Any) -> tuple[str, LossNumbers]:
    """The name and the numbers of a loss of one score."""
    if isinstance(rule, ClassWeighted):
        name, numbers = loss_for_kernels(rule.loss)
        return name, LossNumbers(numbers.setting, float(rule.negative), float(rule.positive))
    return NAMES[type(rule)], LossNumbers(float(rule[0]) if rule else 0.0)


@triton.jit
def slope_and_loss(LOSS: tl.constexpr, loss, score, label):
    """The slopes of rows' losses by their scores, and the losses."""
    away = score - label
    sign = 2 * label - 1
    missing = tl.maximum(1 - sign * score, 0.0)
    if LOSS == "logistic":
        slope = 1 / (1 + tl.exp(-score)) - label
        value = tl.maximum(score, 0.0) - score * label + tl.log(1 + tl.exp(-tl.abs(score)))
    elif LOSS == "squared":
        slope = away
        value = away * away / 2
    elif LOSS == "hinge":
        slope = tl.where(missing > 0, -sign, 0.0)
        value = missing
    elif LOSS == "squared-hinge":
        slope = -2 * sign * missing
        value = missing * missing
    elif LOSS == "poisson":
        mean = tl.exp(tl.minimum(score, LARGEST_LOG))
        slope = tl.minimum(mean, tl.maximum(loss.setting, FAR * label)) - label
        value = mean - label * score
    elif LOSS == "quantile":
        slope = tl.where(away > 0, 1 - loss.setting, tl.where(away < 0, -loss.setting, 0.0))
        value = slope * away
    else:
        tl.static_assert(LOSS == "huber")
        slope = tl.minimum(tl.maximum(away, -loss.setting), loss.setting)
        value = slope * (away - slope / 2)
    weight = tl.where(label > 0, loss.positive, loss.negative)
    return weight * slope, weight * value
