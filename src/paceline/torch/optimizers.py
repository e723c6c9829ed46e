"""How do optimizers update parameters on a GPU? Whole tensors at a time, by the rules of `parameters/optimizers`.

An optimizer's file names its counterparts here (`on_gpu`). `planes` [1 + memory, values] are the values and what the
optimizer remembers; `gradient` [values] may be changed.
"""

from __future__ import annotations

from typing import Any

from paceline.parameters.optimizers.adagrad import AdaGrad
from paceline.parameters.optimizers.adam import Adam
from paceline.parameters.optimizers.sgd import Momentum, Sgd


def _decayed(rule: Any, weights: Any, gradient: Any) -> Any:
    return gradient.add_(weights, alpha=float(rule.l2)) if rule.l2 else gradient


def sgd(rule: Sgd, planes: Any, gradient: Any) -> None:
    planes[0].sub_(_decayed(rule, planes[0], gradient), alpha=float(rule.rate))


def momentum(rule: Momentum, planes: Any, gradient: Any) -> None:
    weights, speeds = planes
    speeds.mul_(float(rule.momentum)).add_(_decayed(rule, weights, gradient))
    weights.sub_(speeds, alpha=float(rule.rate))


def adagrad(rule: AdaGrad, planes: Any, gradient: Any) -> None:
    weights, squares = planes
    gradient = _decayed(rule, weights, gradient)
    squares.addcmul_(gradient, gradient)
    weights.addcdiv_(gradient, squares.sqrt().add_(float(rule.epsilon)), value=-float(rule.rate))


def adam(rule: Adam, planes: Any, gradient: Any) -> None:
    weights, means, squares = planes
    gradient = _decayed(rule, weights, gradient)
    means.lerp_(gradient, 1 - float(rule.beta1))
    squares.mul_(float(rule.beta2)).addcmul_(gradient, gradient, value=1 - float(rule.beta2))
    below = squares.sqrt().div_(float(rule.root)).add_(float(rule.epsilon))
    weights.addcdiv_(means, below, value=-float(rule.rate))
