"""Working memory for steps over keys: the tables that number keys, and what steps and folds write to."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.fold import deal_out
from paceline.kernels.gate import LINE
from paceline.parameters.layout import TableLayout

DIRECT_KEYS = 65_536
# The most distinct keys per update: the tables that number them use 24 bits.
MOST_KEYS = (1 << 24) - 2


class Buffers(NamedTuple):
    """What compiled steps write to: the `distinct` keys of a batch and the `sums` of their gradients.

    Intermediate results are the tables that number keys (`slots`, `direct`, `turn`), each nonzero's number (`local`),
    and the `weights` by number.
    """

    slots: NDArray[Any]
    direct: NDArray[np.uint32]
    distinct: NDArray[Any]
    local: NDArray[np.uint32]
    weights: NDArray[np.float32]
    sums: NDArray[np.float32]
    turn: NDArray[np.int64]


class Scratch:
    """One worker's working memory. Threads must not share it."""

    def __init__(self, layout: TableLayout) -> None:
        self.bias = layout.bias_key
        self._layout = layout
        self.buffers = self._make_buffers(0)

    def room_for(self, num_nonzeros: int) -> Buffers:
        """Buffers for a batch of this many nonzeros."""
        if num_nonzeros > len(self.buffers.local):
            self.buffers = self._make_buffers(num_nonzeros + num_nonzeros // 4)
        return self.buffers

    def _make_buffers(self, num_nonzeros: int) -> Buffers:
        key_dtype, num_weights = self._layout.key_dtype, (num_nonzeros + 1) * self._layout.dim
        return Buffers(
            slots=np.zeros((1 << (num_nonzeros + 8).bit_length(), 2), key_dtype),
            direct=np.zeros(min(DIRECT_KEYS, self._layout.features), np.uint32),
            distinct=np.zeros(num_nonzeros + 1, key_dtype),
            local=np.zeros(num_nonzeros, np.uint32),
            weights=np.zeros(num_weights, np.float32),
            sums=np.zeros(num_weights, np.float32),
            turn=np.zeros(2, np.int64),
        )


class Fold(NamedTuple):
    """Working memory of one thread's part of a fold: totals by distinct key, and tables to find them."""

    columns: Any
    slots: NDArray[Any]
    direct: NDArray[np.uint32]
    distinct: NDArray[Any]
    totals: NDArray[np.float32]
    turn: NDArray[np.int64]

    @staticmethod
    def make(num_keys: int, num_direct: int, layout: TableLayout) -> Fold:
        return Fold(
            layout.columns,
            np.zeros((1 << num_keys.bit_length(), 2), layout.key_dtype),
            np.zeros(num_direct, np.uint32),
            np.zeros(num_keys, layout.key_dtype),
            np.zeros(num_keys * layout.dim, np.float32),
            np.zeros(1, np.int64),
        )

    def next_turn(self) -> int:
        """The mark of the next fold; tables are cleared when marks run out."""
        if self.turn[0] == 255:
            self.slots[:], self.direct[:], self.turn[0] = 0, 0, 0
        self.turn[0] += 1
        return int(self.turn[0])


class Pushes(NamedTuple):
    """Every worker's gradient of a clock, by rank: distinct keys, the sums over its rows, and how many rows.

    Keys lie part by part, one part per thread; part p of a rank is `ends[rank, p]` up to `ends[rank, p + 1]`. There is
    space for the longest rows of the data, but the system only provides memory that is written to.
    """

    columns: Any
    keys: NDArray[Any]
    sums: NDArray[np.float32]
    ends: NDArray[np.int64]
    rows: NDArray[np.int64]

    @staticmethod
    def make(num_workers: int, num_parts: int, batch_nonzeros: int, layout: TableLayout) -> Pushes:
        size = min(batch_nonzeros, MOST_KEYS) + 1
        padded = -(-(num_parts + 1) // LINE) * LINE
        return Pushes(
            layout.columns,
            np.empty((num_workers, size), layout.key_dtype),
            np.empty((num_workers, size * layout.dim), np.float32),
            np.zeros((num_workers, padded), np.int64)[:, : num_parts + 1],
            np.zeros((num_workers, LINE), np.int64),
        )

    def take(self, rank: int, keys: NDArray[Any], sums: NDArray[np.float32]) -> None:
        """Keep a worker's gradient, its keys dealt out to the parts."""
        deal_out(self.columns, keys, sums, self.ends[rank], self.keys[rank], self.sums[rank])

    def num_keys(self, part: int) -> int:
        """How many keys all ranks have in a part."""
        return int((self.ends[:, part + 1] - self.ends[:, part]).sum())
