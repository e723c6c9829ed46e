"""The formula of every optimizer in float64 NumPy: what one update does to states [1 + memory, parameters]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.parameters.optimizers import own_settings
from paceline.settings import OptimizerConfig

Doubles = NDArray[np.float64]


def shrink(w: Doubles, by: Any) -> Doubles:
    return np.asarray(np.sign(w) * np.maximum(abs(w) - by, 0.0))


def rate_after(settings: OptimizerConfig, trained: int) -> float:
    if not settings.decay_rows:
        return settings.learning_rate
    return float(settings.learning_rate * (1 + trained / settings.decay_rows) ** -settings.decay_power)


def own(settings: OptimizerConfig, name: str) -> float:
    return settings.own.get(name, own_settings(settings.name)[name].default)


def sgd(settings: OptimizerConfig, states: Doubles, g: Doubles, trained: int, _update: int) -> None:
    w, rate = states[0], rate_after(settings, trained)
    g = g + settings.l2 * w
    if momentum := settings.own.get("momentum"):
        states[1] = momentum * states[1] + g
        states[0] = w - rate * states[1]
    else:
        states[0] = shrink(w - rate * g, rate * settings.l1)


def adagrad(settings: OptimizerConfig, states: Doubles, g: Doubles, _trained: int, _update: int) -> None:
    g = g + settings.l2 * states[0]
    states[1] += g * g
    rate = settings.learning_rate / (np.sqrt(states[1]) + own(settings, "epsilon"))
    states[0] = shrink(states[0] - rate * g, rate * settings.l1)


def ftrl(settings: OptimizerConfig, states: Doubles, g: Doubles, _trained: int, _update: int) -> None:
    w, n = ftrl_weights(settings, states), states[1]
    sigma = (np.sqrt(n + g * g) - np.sqrt(n)) / settings.learning_rate
    states[0], states[1] = states[0] + g - sigma * w, n + g * g


def ftrl_weights(settings: OptimizerConfig, states: Doubles) -> Doubles:
    z, n = states
    below = (own(settings, "beta") + np.sqrt(n)) / settings.learning_rate + settings.l2
    return np.where(abs(z) <= settings.l1, 0.0, -(z - np.sign(z) * settings.l1) / below)


def adam(settings: OptimizerConfig, states: Doubles, g: Doubles, _trained: int, update: int) -> None:
    beta1, beta2 = own(settings, "beta1"), own(settings, "beta2")
    g = g + settings.l2 * states[0]
    states[1] = beta1 * states[1] + (1 - beta1) * g
    states[2] = beta2 * states[2] + (1 - beta2) * g * g
    mean, square = states[1] / (1 - beta1**update), states[2] / (1 - beta2**update)
    states[0] -= settings.learning_rate * mean / (np.sqrt(square) + own(settings, "epsilon"))


UPDATES: dict[str, Callable[[OptimizerConfig, Doubles, Doubles, int, int], None]] = {
    "sgd": sgd, "adagrad": adagrad, "ftrl": ftrl, "adam": adam
}  # fmt: skip
# For those whose weights are not the first number of a state.
WEIGHTS: dict[str, Callable[[OptimizerConfig, Doubles], Doubles]] = {"ftrl": ftrl_weights}


def apply(settings: OptimizerConfig, states: Doubles, gradient: Doubles, trained: int = 0, update: int = 1) -> None:
    """One update after `trained` rows, number `update` from 1, in place."""
    UPDATES[settings.name](settings, states, gradient, trained, update)


def weights(settings: OptimizerConfig, states: Doubles) -> Doubles:
    """The parameters that states stand for."""
    return WEIGHTS[settings.name](settings, states) if settings.name in WEIGHTS else states[0]
