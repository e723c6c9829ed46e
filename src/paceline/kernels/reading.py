"""How are chosen rows of a block copied, one after the other, into a worker's buffers?"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.jit import compiled
from paceline.kernels.keys import Keys


@compiled
def count_nonzeros(offsets: NDArray[np.int64], rows: NDArray[np.int32]) -> int:
    """The number of keys in the chosen rows of a block."""
    total = 0
    for i in range(rows.size):
        total += offsets[rows[i] + 1] - offsets[rows[i]]
    return total


@compiled
def read_rows(offsets: NDArray[np.int64], keys: Keys, values: NDArray[np.float32], labels: NDArray[Any],
              rows: NDArray[np.int32], out_offsets: NDArray[np.int64], out_keys: Keys, out_values: NDArray[np.float32],
              out_labels: NDArray[Any], filled: int) -> None:  # fmt: skip
    """Copy `rows` of a block after the first `filled` rows of the buffers, which have room for them."""
    # Unsigned numbers throughout: an index that cannot be negative needs no check, and the copies become vectors.
    at = np.uint64(out_offsets[filled])
    for i in range(rows.size):
        row = np.uint64(rows[i])
        out_labels[filled + i] = labels[row]
        start = np.uint64(offsets[row])
        count = np.uint64(offsets[row + np.uint64(1)]) - start
        for k in range(count):
            out_keys[at + k] = keys[start + k]
        for k in range(count):
            out_values[at + k] = values[start + k]
        at += count
        out_offsets[filled + i + 1] = at
