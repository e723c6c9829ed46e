"""How do the hottest keys come first, and how is that undone?"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.keys import fill_dictionary, pick_runs, renumber, tally_runs

NO_COUNTS = np.zeros(0, np.int64)


class KeyOrder:
    """The renumbering that puts the hottest keys first: `hot[i]` becomes i.

    >>> order = KeyOrder(np.array([7, 1], np.uint64))
    >>> keys = np.array([0, 1, 2, 7], np.uint32)
    >>> order.renumber(keys, NO_COUNTS)
    >>> keys.tolist()
    [7, 1, 2, 0]
    >>> order.to_input(np.array([10.0, 11, 12, 13, 14, 15, 16, 17])).tolist()
    [17.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 10.0]
    """

    def __init__(self, hot: NDArray[np.uint64]) -> None:
        num_hot = len(hot)
        moved_up = np.sort(hot[hot >= num_hot])
        displaced = np.setdiff1d(np.arange(num_hot, dtype=np.uint64), hot, assume_unique=True)
        self.hot = hot
        self._input_keys = np.concatenate([hot, displaced])
        self._block_keys = np.concatenate([np.arange(num_hot, dtype=np.uint64), moved_up])
        # Half as wide if that is enough: the tables stay in the processor's near caches.
        narrow = np.uint32 if len(hot) == 0 or hot.max() < (1 << 32) - 1 else np.uint64
        self._front = np.zeros(num_hot, narrow)
        in_front = self._input_keys < num_hot
        self._front[self._input_keys[in_front]] = self._block_keys[in_front]
        self._dictionary = np.zeros((max(4, 1 << (4 * num_hot).bit_length()), 2), narrow)
        fill_dictionary(self._dictionary, self._input_keys[~in_front], self._block_keys[~in_front])

    def renumber(self, keys: NDArray[Any], counts: NDArray[np.int64]) -> None:
        """Replace the input's keys by the blocks' in place; `counts[i]` grows with each key that becomes i."""
        renumber(keys, self._front, self._dictionary, counts)

    def to_input(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values laid out by the blocks' keys (first axis), permuted in place to the input's; returned."""
        values[self._input_keys] = values[self._block_keys]
        return values

    def to_blocks(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values laid out by the input's keys (first axis), permuted in place to the blocks'; returned."""
        values[self._block_keys] = values[self._input_keys]
        return values


def most_frequent(arrays: list[NDArray[Any]], most: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The `most` keys that occur most often (of equally frequent ones, the smaller), sorted, with their counts.

    >>> keys, counts = most_frequent([np.array([5, 3, 5], np.uint32), np.array([9, 7, 9, 3], np.uint32)], 2)
    >>> keys.tolist(), counts.tolist()
    ([3, 5], [2, 2])
    """
    keys = np.concatenate([*arrays, np.zeros(0, np.uint32)])
    keys.sort()
    tally = np.zeros(len(keys) // most + 3, np.int64)  # fewer than `most` keys can occur as often as the last entry
    tally_runs(keys, tally)
    as_often = np.cumsum(tally[::-1])[::-1]  # keys that occur n times or more
    least = max(1, int(np.searchsorted(-as_often, -most, side="right")) - 1)
    more = int(as_often[least + 1]) if least + 1 < len(as_often) else 0
    picked, counts = np.empty(most, keys.dtype), np.empty(most, np.int64)
    num_picked = pick_runs(keys, least, most - more, picked, counts)
    return picked[:num_picked], counts[:num_picked]
