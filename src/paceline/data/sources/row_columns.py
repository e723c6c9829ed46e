"""Which labels and weights do rows have, that columns say? Rows without a usable one become bad rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from paceline.data.sources.cells import Cells, read_names, read_numbers
from paceline.data.sources.parsed import WEIGHT_WORDS, BadRow

LABEL_HINT = "every row needs a label, a finite number or the name of a class; --label says which column has it"

BadRows = dict[int, BadRow]  # by row


def read_labels(column: pa.Array, place: str, bad: BadRows, *, named: bool) -> Cells:
    """Labels, which are names of classes or numbers. `place` is where they are, as messages call it."""
    cells = read_names(column) if named else read_numbers(column)
    note_bad(bad, place, _missing(cells, "no label") | cells.problems, LABEL_HINT)
    return cells


def read_weights(column: pa.Array, place: str, bad: BadRows) -> NDArray[np.float32]:
    """Weights of rows."""
    cells = read_numbers(column)
    negative = {row: f"the weight is `{cells.numbers[row]:g}`" for row in np.flatnonzero(cells.numbers < 0).tolist()}
    note_bad(bad, place, _missing(cells, "no weight") | negative | cells.problems, f"a weight is {WEIGHT_WORDS}")
    return cells.numbers.astype(np.float32)


def note_bad(bad: BadRows, place: str, problems: dict[int, str], hint: str) -> None:
    """Enter rows with a cell that cannot be read, unless they are known to be bad already."""
    for row, problem in problems.items():
        bad.setdefault(row, BadRow(0, place, problem, hint))


def _missing(cells: Cells, what: str) -> dict[int, str]:
    return dict.fromkeys(np.flatnonzero(~cells.present).tolist(), what)
