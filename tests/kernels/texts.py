"""Room to parse text into, for the tests of parsers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from paceline.data.sources.parsed import Room

Found = list[tuple[float, list[tuple[int, float]]]]


def room_for(text: bytes, most_bad: int = 100) -> Room:
    """Room for everything that a text of this length can hold, filled with what no parser writes."""
    rows = len(text) + 1
    return Room(
        np.full(rows, np.nan, np.float32),
        np.full(rows, -9, np.int64),
        np.full(rows + 1, -9, np.int64),
        np.full(rows, 2**63, np.uint64),
        np.full(rows, np.nan, np.float32),
        np.full((most_bad, 4), -9, np.int64),
    )


def rows_in(room: Room, rows: int) -> Found:
    """Label, keys and values of each row."""
    ends = room.offsets[: rows + 1].tolist()
    return [
        (float(room.labels[i]), list(zip(room.keys[a:b].tolist(), room.values[a:b].tolist(), strict=True)))
        for i, (a, b) in enumerate(pairwise(ends))
    ]
