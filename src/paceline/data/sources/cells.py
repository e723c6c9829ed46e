"""How are the cells of a column read: as numbers, as names of classes, or as text to be hashed?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from paceline.data.sources.parsed import shown
from paceline.kernels.columns import BLANK, LONGEST_NUMBER, read_cells
from paceline.kernels.text import CLOSE, EXACT, NUMBER_INFINITE

TEXT_TYPES = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
LONGEST_NAME = 256
NOT_FINITE = "is not a finite number"


class Cells(NamedTuple):
    """One column of a chunk as numbers; `problems[i]` says what is wrong with row i.

    If cells are `names`, numbers are positions among them.
    """

    numbers: NDArray[np.float64]
    present: NDArray[np.bool_]
    problems: dict[int, str]
    names: Sequence[str] = ()


def read_numbers(column: pa.Array) -> Cells:
    """A column of any type as numbers."""
    if pa.types.is_dictionary(column.type):
        places, valid, dictionary = dictionary_of(column)
        cells = read_numbers(dictionary)
        problems = {
            row: cells.problems[places[row]]
            for row in np.flatnonzero(np.isin(places, list(cells.problems)) & valid).tolist()
        }
        return Cells(cells.numbers[places], cells.present[places] & valid, problems)
    if column.type in TEXT_TYPES:
        return _read_text_numbers(column)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    present = column.is_valid().to_numpy(zero_copy_only=False)
    numbers = column.cast(pa.float64(), safe=False).fill_null(0).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        finite = np.isfinite(numbers.astype(np.float32))
    problems = {row: f"`{numbers[row]}` {NOT_FINITE}" for row in np.flatnonzero(~finite).tolist()}
    return Cells(np.where(finite, numbers, 0), present, problems)


def read_names(column: pa.Array) -> Cells:
    """A column of text as names, in the order in which they first appear. Spaces around a name do not count."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    places, valid, dictionary = dictionary_of(encoded)
    text, offsets, _ = text_of(dictionary)
    cells = [text[start : min(stop, start + LONGEST_NAME)].tobytes() for start, stop in pairwise(offsets.tolist())]
    names = [cell.decode(errors="backslashreplace").strip() for cell in cells]
    problems = {
        row: f"{shown(cells[places[row]])} is a name of more than {LONGEST_NAME} bytes"
        for row in np.flatnonzero(np.diff(offsets)[places] > LONGEST_NAME).tolist()
    }
    present = np.array([name != "" for name in names])[places] & valid
    known = dict.fromkeys(names[place] for place in _first_places(places[present]))
    numbers = {name: number for number, name in enumerate(known)}
    return Cells(np.array([numbers.get(name, 0) for name in names], np.float64)[places], present, problems, [*known])


def _first_places(places: NDArray[np.int64]) -> list[int]:
    """The distinct places in the order in which they first appear."""
    found, first = np.unique(places, return_index=True)
    ordered: list[int] = found[np.argsort(first)].tolist()
    return ordered


def holds_text(found: pa.DataType) -> bool:
    """Whether cells of this type are text."""
    return (found.value_type if pa.types.is_dictionary(found) else found) in TEXT_TYPES


def are_names(column: pa.Array) -> bool:
    """Whether labels in this column are names: there are some, and none of them is a number."""
    cells = read_numbers(column.unique())
    others = [problem for problem in cells.problems.values() if not problem.endswith(NOT_FINITE)]
    return 0 < len(others) == np.count_nonzero(cells.present)


def are_numbers(column: pa.Array) -> bool:
    """Whether the cells of this column are numbers or blank. Those that are not finite are to be refused as such."""
    cells = read_numbers(column.unique())
    return bool(cells.present.any()) and all(problem.endswith(NOT_FINITE) for problem in cells.problems.values())


def _read_text_numbers(column: pa.Array) -> Cells:
    """The numbers of a column of text, as CSV has them."""
    text, offsets, filled = text_of(column)
    numbers = np.empty(len(column), np.float64)
    trusts = np.empty(len(column), np.uint8)
    read_cells(text, offsets, numbers, trusts, np.empty(LONGEST_NUMBER + 1, np.uint8))
    problems = {}
    for row in np.flatnonzero((trusts != EXACT) & (trusts != BLANK)).tolist():
        cell = text[offsets[row] : offsets[row + 1]].tobytes()
        if trusts[row] == CLOSE:
            numbers[row] = np.float32(float(cell))
        else:
            what = NOT_FINITE if trusts[row] == NUMBER_INFINITE else "is not a number"
            problems[row] = f"{shown(cell)} {what}"
            numbers[row] = 0
    return Cells(numbers, filled & (trusts != BLANK), problems)


def text_of(column: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.bool_]]:
    """The bytes of a text column, where each cell begins, and which are neither null nor blank."""
    # Each call takes microseconds, which add up if there are tens of thousands of columns.
    if column.type != pa.large_binary():
        column = column.cast(pa.large_binary())
    if column.null_count:
        column = column.fill_null(b"")
    _, offsets_buffer, text_buffer = column.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[column.offset : column.offset + len(column) + 1]
    text = np.frombuffer(text_buffer, np.uint8) if text_buffer is not None else np.zeros(0, np.uint8)
    return text, offsets, np.diff(offsets) > 0


def dictionary_of(column: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.bool_], pa.Array]:
    """Where each cell of a dictionary column is in the dictionary, which cells are not null, and the dictionary.

    Cells are never spelled out, because a dictionary of one long text and many references to it would fill the memory.
    """
    valid = column.indices.is_valid().to_numpy(zero_copy_only=False)
    places = column.indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    dictionary = column.dictionary
    if len(dictionary) > len(column):
        used, places = np.unique(places, return_inverse=True)
        dictionary = dictionary.take(pa.array(used)) if valid.any() else dictionary.slice(0, 1)
    if not len(dictionary):
        dictionary = pa.nulls(1, dictionary.type)
    return places, valid, dictionary
