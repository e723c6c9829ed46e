"""What do the scripts of the peers share? Their arguments, the rows, the log loss, and the line that each prints.

Every script is called as `PYTHON SCRIPT ROWS SETTING`, by a Python that has its peer and numpy; paceline is not needed.
ROWS is a folder that benchmarks/peers.py exports, SETTING a JSON object. It prints one JSON line:

- `rows_per_second` during steady training,
- `first_step_at`, the time of day of the first update,
- `curve`: [rows trained on, seconds of training, test log loss], in order; the seconds do not include evaluations,
- `version` of the peer, and further notes.

Every setting has `features` (the number of keys), `passes`, `most_seconds` (a time limit), and `tune`: whether only the
end of the curve is needed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SEGMENTS_PER_PASS = 10


class Rows(NamedTuple):
    """`keys` and `values` [rows, nonzeros], `labels` [rows] of 0 and 1."""

    keys: NDArray[np.int64]
    values: NDArray[np.float32]
    labels: NDArray[np.float32]


def asked() -> tuple[Path, dict[str, Any]]:
    """The folder of rows and the setting, from the command line."""
    return Path(sys.argv[1]), json.loads(sys.argv[2])


def load(folder: Path) -> Rows:
    """The rows of a split, in memory."""
    return Rows(*(np.load(folder / f"{name}.npy") for name in Rows._fields))


def tenths(num_rows: int, setting: dict[str, Any]) -> list[int]:
    """After how many rows of the first pass a model is evaluated; while tuning, only at its end."""
    first = SEGMENTS_PER_PASS if setting["tune"] else 1
    return [num_rows * tenth // SEGMENTS_PER_PASS for tenth in range(first, SEGMENTS_PER_PASS + 1)]


def segments(num_rows: int, setting: dict[str, Any]) -> Iterator[slice]:
    """The rows in tenths, over and over, for as many passes and seconds as the setting has. The caller stops it."""
    began, size = time.perf_counter(), num_rows // SEGMENTS_PER_PASS
    for _ in range(setting["passes"]):
        for segment in range(SEGMENTS_PER_PASS):
            yield slice(segment * size, (segment + 1) * size)
            if time.perf_counter() - began > setting["most_seconds"]:
                return


def scores(rows: Rows, weights: NDArray[Any], bias: float = 0.0) -> NDArray[np.float64]:
    """The log odds that a linear model gives each row."""
    summed: NDArray[np.float64] = np.einsum("ij,ij->i", weights[rows.keys], rows.values, dtype=np.float64)
    return summed + bias


def log_loss(scores: NDArray[np.float64], labels: NDArray[np.float32]) -> float:
    """The mean of log(1 + eˢ) − s y."""
    return float(np.mean(np.logaddexp(0.0, scores) - labels * scores))


def steady_rate(curve: list[list[float]]) -> float:
    """Rows per second between the first and the last point of a curve, if it has two: warm-up does not count."""
    if len(curve) == 1:
        return curve[0][0] / curve[0][1]
    (first_rows, first_seconds, _), (rows, seconds, _) = curve[0], curve[-1]
    return (rows - first_rows) / (seconds - first_seconds)


def answer(**found: Any) -> None:
    print(json.dumps(found), flush=True)
