"""What parameters does a run have, and how do they begin and change? Every store is built from this declaration.

A model declares a *table*, rows of values by key, or *dense* values, which take part in every row of data, or both. A
declaration is sent to the shards of a cluster, which therefore need to know nothing about the model.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import numpy as np

from paceline.kernels import tables
from paceline.kernels.keys import key_dtype
from paceline.kernels.rules import can_merge, is_shared_type
from paceline.kernels.vectors import lanes
from paceline.parameters.optimizers import rule_at, updates_of
from paceline.settings import OptimizerConfig

INITIAL_KINDS = ("zeros", "uniform", "normal")
# An optimizer that remembers nothing about values.
PLAIN_SGD = OptimizerConfig(name="sgd")


class Initial(msgspec.Struct, frozen=True):
    """How values begin: `zeros`, or drawn from the seed: `uniform` in ±`scale`, `normal` with that deviation."""

    kind: str = "zeros"
    scale: float = 0.0


class Group(msgspec.Struct, frozen=True):
    """Columns of a table that begin and change in one way. If an optimizer remembers something of several columns
    together, they are those of one of `blocks` blocks.
    """

    name: str
    dim: int
    optimizer: OptimizerConfig
    initial: Initial = Initial()
    blocks: int = 1

    @property
    def width(self) -> int:
        """Numbers per key: the values, and what the optimizer remembers about them."""
        updates = updates_of(self.optimizer)
        return self.dim + updates.memory * (self.blocks if updates.shared else self.dim)


class Rules(NamedTuple):
    """What an update of a table needs: the groups with their rules, and the same without regularisation for the bias.

    A table of one column is given by its rule alone (`kernels/tables.py`).
    """

    keys: Any
    bias: Any


class TableLayout(msgspec.Struct, frozen=True):
    """Parameters by key: keys 0 to `features` - 1, and one more behind them if there is a bias, which begins as
    `bias_start` in all columns that begin as zeros for other keys, and as 0 in the others. `rows_before` is on how many
    rows they have been trained before this run.
    """

    features: int
    groups: tuple[Group, ...]
    bias: bool = True
    seed: int = 0
    bias_start: float = 0.0
    rows_before: int = 0

    @property
    def num_keys(self) -> int:
        return self.features + self.bias

    @property
    def bias_key(self) -> int:
        """The key of the bias, -1 for none."""
        return self.features if self.bias else -1

    @property
    def key_dtype(self) -> np.dtype[Any]:
        """The type of keys in arrays."""
        return np.dtype(key_dtype(self.features))

    @property
    def dim(self) -> int:
        """Values per key."""
        return sum(group.dim for group in self.groups)

    @property
    def width(self) -> int:
        """Numbers per key."""
        return sum(group.width for group in self.groups)

    @property
    def decays(self) -> bool:
        """Whether rules change while a run trains."""
        return any(group.optimizer.decay_rows for group in self.groups)

    @property
    def is_drawn(self) -> bool:
        """Whether some initial values depend on the seed and the key."""
        return any(group.initial.kind != "zeros" for group in self.groups)

    @property
    def can_merge(self) -> bool:
        """Whether workers may update copies of a row for a while and then add up the changes."""
        return all(can_merge(rule_at(group.optimizer, 0)) for group in self.groups)

    @property
    def columns(self) -> Any:
        """The number of values per key, as compiled loops take it."""
        return _columns(self.dim)

    def rules_at(self, rows: int) -> Rules:
        """The rules in force after `rows` rows of this run."""
        return Rules(self._rules_at(rows, regularised=True), self._rules_at(rows, regularised=False))

    def plain_rules(self) -> Any:
        """The groups for values alone, without an optimizer's memory."""
        return self._grouped([rule_at(PLAIN_SGD, 0)] * len(self.groups))

    def plain(self) -> TableLayout:
        """The layout of a table of values alone, which begin as zeros."""
        groups = tuple(Group(group.name, group.dim, PLAIN_SGD, blocks=group.blocks) for group in self.groups)
        return TableLayout(self.features, groups, self.bias)

    def _rules_at(self, rows: int, regularised: bool) -> Any:
        rows += self.rows_before
        return self._grouped([rule_at(group.optimizer, rows, regularised=regularised) for group in self.groups])

    def _grouped(self, rules: list[Any]) -> Any:
        """The groups with these rules, as compiled loops take them."""
        if self.dim == 1:
            return rules[0]
        pairs = zip(self.groups, rules, strict=True)
        return tuple(tables.ColumnGroup(rule, _columns_under(rule, group)) for group, rule in pairs)


def _columns(dim: int) -> Any:
    return tables.Single() if dim == 1 else tables.Several(dim)


def _columns_under(rule: Any, group: Group) -> Any:
    """Columns as a rule takes them. Vectors only if it must be: other loops serve any number, compiled only once."""
    if is_shared_type(type(rule)):
        return tables.Together(lanes(group.dim // group.blocks), group.blocks)
    return _columns(group.dim)


class DenseLayout(msgspec.Struct, frozen=True):
    """Parameters that take part in every row: the first `num_trained` of `num_values` are trained.

    The other values are statistics that a model collects while it trains, such as the averages of batch normalisation.
    Their "gradient" is how far they have moved, and they follow the mean over the workers. An epoch has `epoch_rows`
    rows, and one update for every `rows_per_update` of them. `rows_before` and `updates_before` count what was before
    this run.
    """

    num_values: int
    num_trained: int
    optimizer: OptimizerConfig
    epoch_rows: int = 1
    rows_per_update: int = 1
    rows_before: int = 0
    updates_before: int = 0

    @property
    def width(self) -> int:
        """Numbers per value: the value, and what the optimizer remembers about it."""
        return 1 + updates_of(self.optimizer).memory

    def update_number(self, trained: int) -> int:
        """The number of the update after `trained` rows of this run; the first of all has number 1.

        >>> layout = DenseLayout(1, 1, OptimizerConfig(), epoch_rows=10, rows_per_update=4)
        >>> [layout.update_number(trained) for trained in (0, 4, 8, 10, 14)]
        [1, 2, 3, 4, 5]
        """
        epoch, rest = divmod(trained, self.epoch_rows)
        updates = epoch * -(-self.epoch_rows // self.rows_per_update) + rest // self.rows_per_update
        return self.updates_before + updates + 1

    def rule_at(self, trained: int) -> Any:
        """The rule in force after `trained` rows of this run."""
        return rule_at(self.optimizer, self.rows_before + trained, self.update_number(trained))


class Layout(msgspec.Struct, frozen=True):
    """All parameters of a model."""

    table: TableLayout | None = None
    dense: DenseLayout | None = None
