"""How parameters change: one file per optimizer, with its formula and its update on the CPU.

An optimizer's file gives `rule_at`, its rule at one moment, and registers the compiled functions of the rule
(`kernels/rules.py`). The update on a GPU is its counterpart in `torch/optimizers.py`. To add an optimizer, write its
file and add a line to `OPTIMIZERS`, under the name of the file.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any, NamedTuple

from paceline.settings import OptimizerConfig


class Optimizer(NamedTuple):
    """What an optimizer declares: which settings are its own, and what it can train.

    `tables`: parameters by key. `keeps_weights`: the first number of a state is the parameter itself. Otherwise it
    follows from the state, is 0 at first, and can only be in a table.
    """

    settings: tuple[str, ...]
    tables: bool = True
    keeps_weights: bool = True


OPTIMIZERS = {
    "sgd": Optimizer(("decay_rows", "decay_power", "momentum")),
    "adagrad": Optimizer(("epsilon",)),
    "ftrl": Optimizer(("beta",), keeps_weights=False),
    # Its correction for a late start counts updates, and the keys of a table are not updated equally often.
    "adam": Optimizer(("epsilon", "beta1", "beta2"), tables=False),
}
TABLE_OPTIMIZERS = tuple(name for name, optimizer in OPTIMIZERS.items() if optimizer.tables)
DENSE_OPTIMIZERS = tuple(name for name, optimizer in OPTIMIZERS.items() if optimizer.keeps_weights)


def rule_at(settings: OptimizerConfig, rows: int, update: int = 1, regularised: bool = True) -> Any:
    """The rule in force after `rows` rows, in update number `update` (from 1).

    >>> settings = OptimizerConfig(name="sgd", learning_rate=0.5, decay_rows=100, decay_power=1.0, l2=0.25)
    >>> [float(x) for x in rule_at(settings, 100)]
    [0.25, 0.0, 0.25]
    >>> [float(x) for x in rule_at(settings, 100, regularised=False)]
    [0.25, 0.0, 0.0]
    """
    l1, l2 = (settings.l1, settings.l2) if regularised else (0.0, 0.0)
    return _module(settings.name).rule_at(settings, rows, update, l1, l2)


def num_remembered(settings: OptimizerConfig) -> int:
    """How many numbers an optimizer remembers of each parameter.

    >>> num_remembered(OptimizerConfig(name="sgd")), num_remembered(OptimizerConfig(name="sgd", momentum=0.9))
    (0, 1)
    """
    from paceline.kernels.rules import memory

    return memory(rule_at(settings, 0))


@cache
def _module(name: str) -> Any:
    """An optimizer's file, imported when it is needed: names are checked before the compiler is loaded."""
    return importlib.import_module(f"{__name__}.{name}")
