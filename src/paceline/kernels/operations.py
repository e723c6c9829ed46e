"""The operations inside one gradient step, each in a loop of its own to be timed; linear.py has the step itself."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.jit import reassociated

Floats = NDArray[np.float32]


@reassociated
def score_rows(
    offsets: NDArray[np.int64], local: NDArray[np.uint32], values: Floats, weights: Floats, out: Floats
) -> None:
    """Row by row, the sum of weights times values, with the bias; offsets begin with 0."""
    for row in range(out.size):
        z = weights[0]
        for k in range(np.uint64(offsets[row]), np.uint64(offsets[row + 1])):
            z += weights[local[k]] * values[k]
        out[row] = z


@reassociated
def scatter_rows(
    offsets: NDArray[np.int64], local: NDArray[np.uint32], values: Floats, slopes: Floats, out: Floats
) -> None:
    """Add each row's gradient into `out` [number]."""
    for i in range(out.size):
        out[i] = np.float32(0)
    for row in range(slopes.size):
        out[0] += slopes[row]
        for k in range(np.uint64(offsets[row]), np.uint64(offsets[row + 1])):
            out[local[k]] += slopes[row] * values[k]
