"""How do parameters change? One file per optimizer, with its formula, its settings and its updates on the CPU.

An optimizer's file declares a `FORMULA`. The update on a GPU is its counterpart in `torch/optimizers.py`. To add an
optimizer, write its file and add a line to `OPTIMIZERS`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.errors import ConfigError
from paceline.settings import OptimizerConfig

if TYPE_CHECKING:
    from paceline.kernels.rules import Update, Weight


class Setting(NamedTuple):
    """A setting of an optimizer, `--set optimizer.NAME=VALUE`: at least `least`, and less than `below`.

    With `of_model`, the model decides it for its columns, and users cannot set it here.
    """

    default: float
    help: str
    least: float = 0.0
    below: float = math.inf
    dense_only: bool = False
    of_model: bool = False


class Updates(NamedTuple):
    """What rules of one type do to a parameter of which they remember `memory` numbers (`kernels/rules.py`).

    `step_size` is for optimizers that remember sums over their updates: workers may update copies of a parameter for a
    while and then add up the changes. `on_gpu` is "module:function", the update of whole tensors on a GPU, and
    `on_gpu_by_key` the name of the update of parameters by key (`torch/sparse/updates.py`); without them, the optimizer
    cannot train these there. With `shared`, the columns of a vector share the memory.
    """

    memory: int
    update: Update
    weight: Weight | None = None
    step_size: Weight | None = None
    on_gpu: str = ""
    on_gpu_by_key: str = ""
    shared: bool = False


class Formula(NamedTuple):
    """What an optimizer's file declares.

    `rule_at` makes its rule at one moment from the learning rate, `l1`, `l2`, the number of the update (from 1), and
    the optimizer's own `settings`, all by keyword. `rules` are the types of rules that it makes. `decays` says that its
    rate can fall with the rows trained on (`decay_rows`). `state_of`, for optimizers that do not keep the parameter
    itself, makes the first number of a state from a rule and the parameter's value.
    """

    rule_at: Callable[..., Any]
    rules: dict[type, Updates]
    settings: dict[str, Setting]
    decays: bool = False
    state_of: Callable[[Any, Any], Any] | None = None


class Optimizer(NamedTuple):
    """What an optimizer can train.

    `tables`: parameters by key. `keeps_weights`: the first number of a state is the parameter itself. Otherwise it
    follows from the state, and can only be in a table. `scale_free`: steps do not grow with the gradients.
    """

    tables: bool = True
    keeps_weights: bool = True
    scale_free: bool = False


# By the names of their files.
OPTIMIZERS = {
    "sgd": Optimizer(),
    "adagrad": Optimizer(scale_free=True),
    "ftrl": Optimizer(keeps_weights=False, scale_free=True),
    # Its correction for a late start counts updates, and the keys of a table are not updated equally often.
    "adam": Optimizer(tables=False, scale_free=True),
}
TABLE_OPTIMIZERS = tuple(name for name, optimizer in OPTIMIZERS.items() if optimizer.tables)
DENSE_OPTIMIZERS = tuple(name for name, optimizer in OPTIMIZERS.items() if optimizer.keeps_weights)


@cache
def formula_of(optimizer: str) -> Formula:
    """What an optimizer's file declares. It is read when needed: names are known before NumPy is loaded."""
    found: Formula = importlib.import_module(f"{__name__}.{optimizer}").FORMULA
    return found


def own_settings(optimizer: str) -> dict[str, Setting]:
    """The settings of all optimizers by name. If several declare one, this optimizer's declaration counts."""
    found = {name: setting for one in OPTIMIZERS for name, setting in formula_of(one).settings.items()}
    found = found | formula_of(optimizer).settings if optimizer in OPTIMIZERS else found
    return {name: setting for name, setting in found.items() if not setting.of_model}


def rule_at(settings: OptimizerConfig, rows: int, update: int = 1, regularised: bool = True) -> Any:
    """The rule in force after `rows` rows, in update number `update` (from 1).

    >>> settings = OptimizerConfig(name="sgd", learning_rate=0.5, decay_rows=100, decay_power=1.0, l2=0.25)
    >>> [float(x) for x in rule_at(settings, 100)]
    [0.25, 0.0, 0.25]
    >>> [float(x) for x in rule_at(settings, 100, regularised=False)]
    [0.25, 0.0, 0.0]
    """
    _register(settings.name)
    return _rule_at(settings, rows, update, regularised)


def _rule_at(settings: OptimizerConfig, rows: int, update: int, regularised: bool) -> Any:
    formula = formula_of(settings.name)
    rate = settings.rate_after(rows) if formula.decays else settings.learning_rate
    l1, l2 = (settings.l1, settings.l2) if regularised else (0.0, 0.0)
    own = {name: settings.own.get(name, setting.default) for name, setting in formula.settings.items()}
    return formula.rule_at(rate=rate, l1=l1, l2=l2, update=update, **own)


@cache
def _register(optimizer: str) -> None:
    """Let compiled loops call the updates of an optimizer."""
    from paceline.kernels.rules import optimizer_rule

    for rule, updates in formula_of(optimizer).rules.items():
        optimizer_rule(rule, updates.memory, updates.update, updates.weight, updates.step_size, shared=updates.shared)


def updates_of(settings: OptimizerConfig) -> Updates:
    """What the optimizer with these settings does to a parameter.

    >>> [updates_of(OptimizerConfig(name="sgd", own=own)).memory for own in ({}, {"momentum": 0.9})]
    [0, 1]
    """
    return formula_of(settings.name).rules[type(_rule_at(settings, 0, 1, regularised=True))]


def state_of(settings: OptimizerConfig, value: Any, regularised: bool = False) -> Any:
    """The first number of the state of a parameter that has this value, or an array of them, and no updates yet.

    >>> [float(state_of(OptimizerConfig(name=name, learning_rate=0.5), 3.0)) for name in ("adagrad", "ftrl")]
    [3.0, -6.0]
    """
    make = formula_of(settings.name).state_of
    return value if make is None else make(_rule_at(settings, 0, 1, regularised), value)


def gpu_update_of(settings: OptimizerConfig, by_key: bool = False) -> str:
    """The update of whole tensors on a GPU, "module:function", or the name of that of parameters by key; `ConfigError`
    if the optimizer has none.
    """
    updates = updates_of(settings)
    if not (update := updates.on_gpu_by_key if by_key else updates.on_gpu):
        message = f"`optimizer` is `{settings.name}`, which has no update on a GPU"
        raise ConfigError(message, "--device cpu, or another --optimizer")
    return update
