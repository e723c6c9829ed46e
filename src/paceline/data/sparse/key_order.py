"""How do the hottest keys come first, and how is that undone?"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.keys import PART_BITS, add_up, fill_dictionary, fill_filter, renumber, sort_by_part
from paceline.kernels.names import count_keys
from paceline.machine import num_cores

NO_COUNTS = np.zeros(0, np.int64)
NUM_PARTS = 1 << PART_BITS


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
        self.hot = hot
        self._block_keys, self._input_keys = moved_keys(hot)
        # Half as wide if that is enough: the tables stay in the processor's near caches.
        narrow = np.uint32 if len(hot) == 0 or hot.max() < (1 << 32) - 1 else np.uint64
        self._front = np.zeros(num_hot, narrow)
        in_front = self._input_keys < num_hot
        self._front[self._input_keys[in_front]] = self._block_keys[in_front]
        self._dictionary = np.zeros((max(4, 1 << (4 * num_hot).bit_length()), 2), narrow)
        fill_dictionary(self._dictionary, self._input_keys[~in_front], self._block_keys[~in_front])
        self._filter = np.zeros(max(1, 1 << max(0, (num_hot - 1).bit_length() - 1)), np.uint64)
        fill_filter(self._filter, self._input_keys[~in_front])

    def renumber(self, keys: NDArray[Any], counts: NDArray[np.int64]) -> None:
        """Replace the input's keys by the blocks' in place; `counts[i]` grows with each key that becomes i."""
        renumber(keys, self._front, self._dictionary, self._filter, counts)

    def add_up(self, keys: NDArray[Any], values: NDArray[np.float32], sums: NDArray[np.float64]) -> None:
        """For nonzeros with keys of the input: to `sums[i]`, for a key that is i in blocks, add 1, the value and its
        square.
        """
        add_up(keys, values, self._front, self._dictionary, self._filter, sums)

    def input_keys(self, keys: NDArray[Any]) -> NDArray[np.uint64]:
        """The input's keys for keys of blocks.

        >>> KeyOrder(np.array([7, 1], np.uint64)).input_keys(np.array([0, 1, 2, 7], np.uint32)).tolist()
        [7, 1, 2, 0]
        """
        found: NDArray[np.uint64] = keys.astype(np.uint64)
        block_keys, input_keys = self._block_keys, self._input_keys
        if len(block_keys):
            places = np.minimum(np.searchsorted(block_keys, found), len(block_keys) - 1)
            moved = block_keys[places] == found
            found[moved] = input_keys[places[moved]]
        return found

    def to_input(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values laid out by the blocks' keys (first axis), permuted in place to the input's; returned."""
        values[self._input_keys] = values[self._block_keys]
        return values

    def to_blocks(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values laid out by the input's keys (first axis), permuted in place to the blocks'; returned."""
        values[self._block_keys] = values[self._input_keys]
        return values


def moved_keys(hot: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The keys of blocks that may be others in the input, ascending, and the input's keys that they are.

    >>> [keys.tolist() for keys in moved_keys(np.array([7, 1], np.uint64))]
    [[0, 1, 7], [7, 1, 0]]
    """
    front = np.arange(len(hot), dtype=np.uint64)
    moved_up = np.sort(hot[hot >= len(hot)])
    displaced = np.setdiff1d(front, hot, assume_unique=True)
    return np.concatenate([front, moved_up]), np.concatenate([hot, displaced])


def most_frequent(arrays: list[NDArray[Any]], most: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The `most` keys that occur most often (of equally frequent ones, the smaller), sorted, with their counts.

    >>> keys, counts = most_frequent([np.array([5, 3, 5], np.uint32), np.array([9, 7, 9, 3], np.uint32)], 2)
    >>> keys.tolist(), counts.tolist()
    ([3, 5], [2, 2])
    """
    num_keys = sum(map(len, arrays))
    if not num_keys:
        return np.zeros(0, np.uint32), NO_COUNTS
    size = 1 + max(int(keys.max(initial=0)) for keys in arrays)
    keys: NDArray[Any]
    counts: NDArray[Any]
    if size <= num_keys < 1 << 32:
        keys, counts = np.arange(size, dtype=arrays[0].dtype), np.zeros(size, np.uint32)
        for found in arrays:
            count_keys(found, counts)
    else:  # a table would be mostly zeros
        keys, counts = _count_by_part(arrays)
    # Fewer than `most` keys can occur as often as the last entry of the tally.
    tally = np.bincount(np.minimum(counts, num_keys // most + 1))[1:]
    at_least = np.cumsum(tally[::-1])[::-1]
    if at_least[0] <= most:
        chosen = np.flatnonzero(counts)
    else:
        least = 1 + int(np.flatnonzero(at_least >= most)[-1])
        more, as_often = np.flatnonzero(counts > least), np.flatnonzero(counts == least)
        num_least = most - len(more)
        chosen = np.append(more, as_often[np.argpartition(keys[as_often], num_least - 1)[:num_least]])
    chosen = chosen[np.argsort(keys[chosen])]
    return keys[chosen], counts[chosen].astype(np.int64)


def _count_by_part(arrays: list[NDArray[Any]]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The distinct keys and how often each occurs, where a table of all keys would be mostly zeros."""
    with ThreadPoolExecutor(num_cores(), thread_name_prefix="paceline-count") as threads:
        dealt = list(threads.map(_deal_out, arrays))
        parts = list(threads.map(lambda part: _count([pieces[part] for pieces in dealt]), range(NUM_PARTS)))
    keys, counts = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return keys, counts


def _deal_out(keys: NDArray[Any]) -> list[NDArray[Any]]:
    """The keys of each part: together they are all keys, and no key is in two parts."""
    ends, dealt = np.zeros(NUM_PARTS + 1, np.int64), np.empty_like(keys)
    sort_by_part(keys, ends, dealt)
    return np.split(dealt, ends[: NUM_PARTS - 1])


def _count(pieces: list[NDArray[Any]]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The distinct keys of all pieces, sorted, and how often each occurs."""
    # NumPy sorts integers with vector instructions, which is faster than counting them in a dictionary.
    keys = np.concatenate(pieces)
    keys.sort()
    last = np.flatnonzero(np.append(keys[1:] != keys[:-1], len(keys) > 0))
    return keys[last], np.diff(last, prepend=-1)
