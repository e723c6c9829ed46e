"""How do numbers become bins? Edges separate them; a number belongs to the bin whose lower edge it reaches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from paceline.data.sources.cells import read_numbers
from paceline.data.sources.times import as_numbers
from paceline.errors import ConfigError, printable

SAMPLE_ROWS = 1 << 18
DIGITS = 6


def edges_of(name: str, count: int, column: pa.Array) -> list[float]:
    """The edges of at most `count` bins that hold about as many of the first rows each.

    >>> edges_of("age", 3, pa.array([1, 2, 3, 4, 5, 6]))
    [3.0, 5.0]
    >>> edges_of("rooms", 10, pa.array([1, 2, 2, 3]))
    [2.0, 3.0]
    """
    cells = read_numbers(as_numbers(column.slice(0, SAMPLE_ROWS)))
    good = cells.present.copy()
    good[[*cells.problems]] = False
    numbers = cells.numbers[good]
    if not len(numbers):
        raise ConfigError(f"`bins` has `{printable(name)}`, which has no number in the first rows", "give its edges")
    distinct = np.unique(numbers)
    if len(distinct) <= count:
        return [float(edge) for edge in distinct[1:]]
    found = np.quantile(numbers, np.arange(1, count) / count, method="higher").tolist()
    edges = {edge if edge.is_integer() else float(f"{edge:.{DIGITS}g}") for edge in found}
    return [edge for edge in sorted(edges) if edge > distinct[0]]


def in_bins(numbers: NDArray[np.float64], present: NDArray[np.bool_], edges: Sequence[float]) -> pa.Array:
    """The name of the bin of each number, as text."""
    places = pa.array(np.searchsorted(edges, numbers, side="right"), pa.int32(), mask=~present)
    return pa.DictionaryArray.from_arrays(places, pa.array(bin_names(edges), pa.large_string()))


def bin_names(edges: Sequence[float]) -> list[str]:
    """The names of bins, as features have them.

    >>> bin_names([18.0, 65.5])
    ['..18', '18..65.5', '65.5..']
    """
    shown = ["", *(repr(float(edge)).removesuffix(".0") for edge in edges), ""]
    return [f"{low}..{high}" for low, high in pairwise(shown)]
