"""How are the states of a run's parameters dealt out to its shards?"""

from __future__ import annotations

from typing import NamedTuple


class Parts(NamedTuple):
    """States [keys, width] over shards: every so manieth key, so that the hottest are spread; or, of a dense model,
    one range after the other.
    """

    num_keys: int
    width: int
    num_shards: int
    in_ranges: bool

    def of(self, shard: int) -> slice:
        """A shard's part of an array of all keys.

        >>> Parts(10, 1, 3, in_ranges=False).of(1), Parts(10, 1, 3, in_ranges=True).of(1)
        (slice(1, 10, 3), slice(3, 6, 1))
        """
        if self.in_ranges:
            return slice(self.num_keys * shard // self.num_shards, self.num_keys * (shard + 1) // self.num_shards, 1)
        return slice(shard, self.num_keys, self.num_shards)

    def size(self, shard: int) -> int:
        """How many keys a shard has."""
        return len(range(*self.of(shard).indices(self.num_keys)))
