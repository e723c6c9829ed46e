"""How do the parameters of a run get to its shards, and back? They are dealt out, and gathered.

Everywhere else keys are in the input's order. Shards have them in the blocks' order, the hottest first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import ConfigError
from paceline.models.model import Model, Parameters, TableView
from paceline.parameters.parts import DENSE, TABLE, parts_of
from paceline.training.checkpoint import States
from paceline.training.cluster.messages import Fetched
from paceline.training.cluster.shard_link import ShardLink

ByKind = dict[str, NDArray[np.float32]]


class DealtParameters:
    """The parameters of a model, as the coordinator deals them out to shards. `ByKind` are arrays in their order."""

    def __init__(self, model: Model, dataset: Any, num_shards: int) -> None:
        self._model = model
        self._dataset = dataset
        self._parts = parts_of(model.layout, num_shards)
        if num_shards > self._parts[0].size:
            raise ConfigError(
                f"`shards` is {num_shards}, but there are only {self._parts[0].size} keys to share out", "--shards 1"
            )

    def begin(self, states: States | None) -> ByKind:
        """The states to continue from, whose arrays are taken over. Tables that are not given begin by themselves."""
        found: ByKind = {}
        if states is not None and states.table is not None:
            found[TABLE] = self._dataset.key_order.to_blocks(states.table)
        if states is not None and states.dense is not None:
            found[DENSE] = states.dense
        elif (dense := self._model.layout.dense) is not None:
            found[DENSE] = np.zeros((dense.num_values, dense.width), np.float32)
            found[DENSE][:, 0] = self._model.initial()
        return found

    def load(self, shard: int, link: ShardLink, states: ByKind) -> None:
        """Give a shard its part of the states."""
        for part in self._parts:
            if part.name in states:
                link.load(part.name, states[part.name][part.of(shard)])

    def room_for_states(self) -> ByKind:
        """Room for the states of all shards, [n, width]; those in ranges lie in memory number by number."""
        return {
            part.name: np.empty((part.size, part.width), np.float32, order="F" if part.in_ranges else "C")
            for part in self._parts
        }

    def fetch_copies(self, shards: Iterable[tuple[int, ShardLink]], states: ByKind) -> None:
        """Fill states with what some shards have copied."""
        for shard, link in shards:
            for part in self._parts:
                link.fetch("copy", part.name, states[part.name][part.of(shard)])
            link.ask(Fetched())

    def as_states(self, states: ByKind) -> States:
        """States in the input's order; the arrays are taken over."""
        if TABLE in states:
            self._dataset.key_order.to_input(states[TABLE])
        return States(states.get(TABLE), states.get(DENSE))

    def fetch_values(self, links: list[ShardLink], rows: int) -> ByKind:
        """All values, [n, dim], after this many rows."""
        found = {part.name: np.empty((part.size, part.dim), np.float32) for part in self._parts}
        for shard, link in enumerate(links):
            for part in self._parts:
                link.fetch("values", part.name, found[part.name][part.of(shard)], rows)
        return found

    def as_parameters(self, values: ByKind, in_input_order: bool) -> Parameters:
        """Values to score with, in the blocks' order, or to save, in the input's; the arrays are taken over."""
        table, dense = self._model.layout.table, values.get(DENSE)
        if table is not None and in_input_order:
            self._dataset.key_order.to_input(values[TABLE])
        view = None if table is None else TableView.of_values(values[TABLE].ravel(), table)
        return Parameters(view, None if dense is None else dense.ravel())
