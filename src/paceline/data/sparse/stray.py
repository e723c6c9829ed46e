"""Which keys are so large, and so rare, that they alone make a model large?

A model has a weight for every key up to the largest. A few stray keys, such as 2,000,000,000 in rows whose other keys
are below a million, are usually mistakes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.data.sparse.batch import Batch

KEPT = 64
LEAST_KEYS = 1 << 26  # a model of 256 MiB
GAP = 4
BYTES_PER_KEY = 4


class Stray(NamedTuple):
    """The largest key and where it is, how many nonzeros are as far away, and the largest key of all others."""

    key: int
    where: str
    nonzeros: int
    rest: int

    def words(self, base: int = 0) -> str:
        """What is wrong, for people who count keys from `base`."""
        others = f" and {self.nonzeros - 1} more" if self.nonzeros > 1 else ""
        return (
            f"key {self.key + base} ({self.where}){others} makes a model of {self.key + 1:,} weights, "
            f"{BYTES_PER_KEY * (self.key + 1) / 1e9:.1f} GB; the other keys, up to {self.rest + base}, need "
            f"{self.rest + 1:,}"
        )

    @property
    def hint(self) -> str:
        """What to do about it."""
        return f"correct the data, or leave such rows out: --features {self.rest + 1} --skip-bad-rows {self.nonzeros}"


class LargestKeys:
    """Remembers the largest keys of rows, and where they are."""

    def __init__(self) -> None:
        self._found: list[tuple[int, str]] = []
        self._least = LEAST_KEYS
        self._largest_other = -1
        self._rows = 0

    def take(self, rows: Batch, file: str, numbers: NDArray[np.int64]) -> None:
        """Look at rows of a file, which have these numbers there."""
        self._rows += rows.num_rows
        largest = int(rows.keys.max(initial=0)) if rows.num_nonzeros else -1
        if largest < self._least:
            self._largest_other = max(self._largest_other, largest)
            return
        places = np.flatnonzero(rows.keys >= self._least)
        below: NDArray[Any] = rows.keys[rows.keys < self._least]
        self._largest_other = max(self._largest_other, int(below.max()) if len(below) else -1)
        if len(places) > KEPT:
            chosen = np.argsort(rows.keys[places])
            self._largest_other = max(self._largest_other, int(rows.keys[places[chosen[:-KEPT]]].max()))
            places = places[chosen[-KEPT:]]
        of = np.searchsorted(rows.offsets, places, side="right") - 1
        self._found += [
            (int(rows.keys[place]), f"{file}, row {int(numbers[row])}")
            for place, row in zip(places.tolist(), of.tolist(), strict=True)
        ]
        self._found.sort(key=lambda found: -found[0])
        if len(self._found) > KEPT:
            self._largest_other = max(self._largest_other, self._found[KEPT][0])
            del self._found[KEPT:]
            self._least = max(self._least, self._found[-1][0])

    @property
    def stray(self) -> Stray | None:
        """The stray keys, if there are any."""
        keys = [key for key, _ in self._found] + [self._largest_other]
        found = None
        for count in range(1, min(len(keys) - 1, max(1, self._rows // 100)) + 1):
            if keys[count - 1] > GAP * max(1, keys[count]):
                found = Stray(*self._found[0], count, max(0, keys[count]))
        return found
