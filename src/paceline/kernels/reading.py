"""How do chosen rows of a block come to lie one behind the other in a worker's buffers?"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.jit import compiled


@compiled
def count_nonzeros(offsets: NDArray[np.int64], rows: NDArray[np.int32]) -> int:
    """How many keys the chosen rows of a block have together."""
    total = 0
    for i in range(rows.size):
        total += offsets[rows[i] + 1] - offsets[rows[i]]
    return total


@compiled
def read_rows(
    offsets: NDArray[np.int64],
    keys: NDArray[Any],
    values: NDArray[np.float32],
    labels: NDArray[np.uint8],
    rows: NDArray[np.int32],
    out_offsets: NDArray[np.int64],
    out_keys: NDArray[Any],
    out_values: NDArray[np.float32],
    out_labels: NDArray[np.uint8],
    filled: int,
) -> None:
    """Copy `rows` of a block behind the first `filled` rows of the buffers, which have room for them."""
    at = out_offsets[filled]
    for i in range(rows.size):
        row = rows[i]
        out_labels[filled + i] = labels[row]
        start, stop = offsets[row], offsets[row + 1]
        for k in range(start, stop):
            out_keys[at + k - start] = keys[k]
        for k in range(start, stop):
            out_values[at + k - start] = values[k]
        at += stop - start
        out_offsets[filled + i + 1] = at
