"""How are the parameters of a run dealt out to its shards?"""

from __future__ import annotations

from typing import NamedTuple

from paceline.parameters.layout import Layout

TABLE, DENSE = "table", "dense"


class Part(NamedTuple):
    """All parameters of one kind, and how they are dealt out: dense values `in_ranges`, one after the other; keys one
    by one, every S-th to the same shard, so that all shards get hot ones.
    """

    name: str
    size: int
    width: int
    dim: int
    num_shards: int
    in_ranges: bool = True

    def of(self, shard: int) -> slice:
        """A shard's part of an array of all of them.

        >>> Part(TABLE, 10, 1, 1, 3, in_ranges=False).of(1), Part(DENSE, 10, 1, 1, 3).of(1)
        (slice(1, 10, 3), slice(3, 6, 1))
        """
        if self.in_ranges:
            return slice(self.size * shard // self.num_shards, self.size * (shard + 1) // self.num_shards, 1)
        return slice(shard, self.size, self.num_shards)

    def size_of(self, shard: int) -> int:
        """How many a shard has."""
        return len(range(*self.of(shard).indices(self.size)))


def parts_of(layout: Layout, num_shards: int) -> list[Part]:
    """The kinds of parameters that a model has."""
    found = []
    if (table := layout.table) is not None:
        found.append(Part(TABLE, table.num_keys, table.width, table.dim, num_shards, in_ranges=False))
    if (dense := layout.dense) is not None:
        found.append(Part(DENSE, dense.num_values, dense.width, 1, num_shards))
    return found
