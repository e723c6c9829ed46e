"""Which keys do the training rows of a dataset use?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from paceline.data.sparse.dataset import SparseDataset
from paceline.data.sparse.stray import LargestKeys, Stray
from paceline.kernels.names import mark_keys

MOST_KEYS = 1 << 33  # more are not counted, which takes a bit for each
SMALL = 1 << 24  # nonzeros


class UsedKeys(NamedTuple):
    """How many different keys there are, None if they were not counted, and those that are far from all others."""

    used: int | None
    stray: Stray | None


def look_at_keys(dataset: SparseDataset) -> UsedKeys:
    """Read the keys of all training rows."""
    counts = dataset.features <= MOST_KEYS
    marked = np.zeros((dataset.features >> 6) + 1 if counts else 1, np.uint64)
    used, first, largest = 0, 1, LargestKeys()
    for number in range(len(dataset.manifest.train.blocks)):
        rows = dataset.block("train", number)
        used += mark_keys(rows.keys, marked) if counts else 0
        # Hot keys have other numbers in the blocks. Of much data, they are in too many rows to be stray.
        keys = dataset.key_order.input_keys(rows.keys) if dataset.manifest.train.nonzeros < SMALL else rows.keys
        numbers = np.arange(first, first + rows.num_rows)
        largest.take(rows._replace(keys=keys), "training rows", numbers)
        first += rows.num_rows
    return UsedKeys(used if counts else None, largest.stray)
