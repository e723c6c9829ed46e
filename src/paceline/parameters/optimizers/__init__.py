"""How values change: each optimizer is a rule, the width of its state, and a compiled weight and update.

All states begin as zeros. An optimizer's file gives the formula and `rule_at(settings, rows, l1, l2)`, its rule after
so many rows.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

from paceline.config import OptimizerConfig
from paceline.parameters.optimizers import adagrad, ftrl, sgd

BY_NAME: dict[str, ModuleType] = {"sgd": sgd, "adagrad": adagrad, "ftrl": ftrl}


class Rules(NamedTuple):
    """What an update needs: the rule of every key, and that of the bias, which is never regularised."""

    keys: Any
    bias: Any


def width(settings: OptimizerConfig) -> int:
    """How many numbers the state of one key has."""
    return int(BY_NAME[settings.name].WIDTH)


def rules_at(settings: OptimizerConfig, rows: int) -> Rules:
    """The rules in force when `rows` rows have been trained on.

    >>> settings = OptimizerConfig(name="sgd", learning_rate=0.5, decay_rows=100, decay_power=1.0, l2=0.25)
    >>> [float(x) for x in rules_at(settings, 100).keys]
    [0.25, 0.0, 0.25]
    >>> [float(x) for x in rules_at(settings, 100).bias]
    [0.25, 0.0, 0.0]
    """
    optimizer = BY_NAME[settings.name]
    return Rules(
        optimizer.rule_at(settings, rows, settings.l1, settings.l2), optimizer.rule_at(settings, rows, 0.0, 0.0)
    )
