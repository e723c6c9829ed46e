"""Which rows are held out to test on?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import numpy as np

from paceline.data.images.dataset import Images
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.dataset import Split
from paceline.kernels.hashing import draw

R = TypeVar("R", Batch, Images)


def hold_out(rows: R, first_row: int, fraction: float, seed: int) -> Iterator[tuple[Split, R]]:
    """Training and test rows: row i of the input is a test row if its pseudo-random number is below the fraction."""
    if fraction == 0:
        yield "train", rows
        return
    drawn = np.empty(rows.num_rows, np.bool_)
    draw(np.uint64(seed), first_row, drawn, np.uint64(int(fraction * 2.0**64)))
    yield "train", rows.select(~drawn)
    yield "test", rows.select(drawn)
