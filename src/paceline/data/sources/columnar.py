"""How do the columns of a table become rows, whether it comes from Parquet, Arrow or CSV?

One column is the label. Every other column is a feature. Numeric columns (integers, floats, booleans) are the keys 0,
1, … in the order of the columns, with the cell as value; zeros are left out, as they change nothing. Text columns are
hashed with the column's name as salt (`kernels/hashing.py`) to the keys after these, value 1. Nulls and blank cells are
absent. All files have the columns of the first.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from paceline.data.sources.files import Source
from paceline.data.sources.parsed import BadRow, Parsed, input_key_dtype, shown
from paceline.data.sparse.batch import Batch
from paceline.errors import DataError, printable
from paceline.kernels.columns import BLANK, LONGEST_NUMBER, hash_cells, read_cells
from paceline.kernels.hashing import salt_of
from paceline.kernels.text import CLOSE, EXACT, NUMBER_INFINITE

Kind = Literal["number", "text"]

NAMES_SHOWN = 8
TEXT_TYPES = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
LABEL_HINT = "every row needs a label, a finite number; --label says which column has it"
NUMBER_HINT = "numeric columns hold finite numbers, and nulls or blanks where one is missing"


class TableColumns(NamedTuple):
    """The columns of a table except its label, and whether each is numeric or text."""

    label: str
    kinds: dict[str, Kind]


class Cells(NamedTuple):
    """One column of a chunk as numbers; `problems[i]` says what is wrong with row i."""

    numbers: NDArray[np.float64]
    present: NDArray[np.bool_]
    problems: dict[int, str]


class Columnar:
    """Tables of one set of columns, turned into rows; `Csv` and `Tables` know the files."""

    def __init__(self, columns: TableColumns, hash_bits: int) -> None:
        self.columns = columns
        self.label_column = f"column {columns.label}"
        self.notes: tuple[str, ...] = (describe_columns(columns.kinds),)
        self.settings: dict[str, Any] = {"label": columns.label, "hash_bits": hash_bits, "columns": columns.kinds}
        self._mask = np.uint64((1 << hash_bits) - 1)
        self.num_numeric = sum(kind == "number" for kind in columns.kinds.values())
        has_text = self.num_numeric < len(columns.kinds)
        self.features = self.num_numeric + (1 << hash_bits if has_text else 0)

    def rows(self, table: pa.RecordBatch, row_numbers: NDArray[np.int64], most_bad: int) -> Parsed:
        """Turn a table into rows; row i of it is number `row_numbers[i]` of the chunk."""
        shape = (table.num_rows, len(self.columns.kinds))
        keys: NDArray[Any] = np.zeros(shape, input_key_dtype(self.features))
        values, present = np.ones(shape, np.float32), np.zeros(shape, bool)
        label = read_numbers(table.column(self.columns.label))
        problems = dict.fromkeys(np.flatnonzero(~label.present).tolist(), "no label") | label.problems
        bad = {row: BadRow(0, self.label_column, problem, LABEL_HINT) for row, problem in problems.items()}
        next_key = 0
        for j, (name, kind) in enumerate(self.columns.kinds.items()):
            column = table.column(name)
            if kind == "number":
                cells = read_numbers(column)
                keys[:, j], values[:, j] = next_key, cells.numbers
                present[:, j] = cells.present & (cells.numbers != 0)
                next_key += 1
                for row, problem in cells.problems.items():
                    bad.setdefault(row, BadRow(0, f"column {printable(name)}", problem, NUMBER_HINT))
            else:
                keys[:, j], present[:, j] = self._hash(name, column)
        good = np.ones(table.num_rows, bool)
        good[list(bad)] = False
        present &= good[:, None]
        offsets = np.concatenate([[0], np.cumsum(present.sum(1)[good])]).astype(np.int64)
        labels = label.numbers[good].astype(np.float32)
        batch = Batch(labels, offsets, keys[present], values[present]).distinct()
        bad_rows = [bad[row]._replace(row=int(row_numbers[row])) for row in sorted(bad)]
        return Parsed(batch, row_numbers[good], table.num_rows, bad_rows[:most_bad])

    def _hash(self, name: str, column: pa.Array) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        if pa.types.is_dictionary(column.type):
            places, valid, dictionary = _dictionary_of(column)
            hashed, filled = self._hash(name, dictionary)
            return hashed[places], filled[places] & valid
        text, offsets, filled = _text_of(column)
        keys: NDArray[Any] = np.empty(len(column), input_key_dtype(self.features))
        hash_cells(text, offsets, salt_of(name), self._mask, np.uint64(self.num_numeric), keys)
        return keys, filled


def read_numbers(column: pa.Array) -> Cells:
    """A column of any type as numbers."""
    if pa.types.is_dictionary(column.type):
        places, valid, dictionary = _dictionary_of(column)
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
    problems = {row: f"`{numbers[row]}` is not a finite number" for row in np.flatnonzero(~finite).tolist()}
    return Cells(np.where(finite, numbers, 0), present, problems)


def _read_text_numbers(column: pa.Array) -> Cells:
    """The numbers of a column of text, as CSV has them."""
    text, offsets, filled = _text_of(column)
    numbers = np.empty(len(column), np.float64)
    trusts = np.empty(len(column), np.uint8)
    read_cells(text, offsets, numbers, trusts, np.empty(LONGEST_NUMBER + 1, np.uint8))
    problems = {}
    for row in np.flatnonzero((trusts != EXACT) & (trusts != BLANK)).tolist():
        cell = text[offsets[row] : offsets[row + 1]].tobytes()
        if trusts[row] == CLOSE:
            numbers[row] = np.float32(float(cell))
        else:
            what = "is not a finite number" if trusts[row] == NUMBER_INFINITE else "is not a number"
            problems[row] = f"{shown(cell)} {what}"
            numbers[row] = 0
    return Cells(numbers, filled & (trusts != BLANK), problems)


def _text_of(column: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.bool_]]:
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


def _dictionary_of(column: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.bool_], pa.Array]:
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


def columns_of(schema: pa.Schema, label: str, source: Source) -> TableColumns:
    """The columns of a typed table: which are numeric and which text."""
    require_label(schema.names, label, source)
    kinds: dict[str, Kind] = {}
    for field in schema:
        types = pa.types
        kind = field.type.value_type if types.is_dictionary(field.type) else field.type
        if field.name == label:
            continue
        if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind):
            kinds[field.name] = "number"
        elif kind in TEXT_TYPES:
            kinds[field.name] = "text"
        else:
            raise DataError(
                f"`{source.name}`, column {printable(field.name)}: the type is {printable(str(field.type))}",
                "columns are numbers or text; cast it or leave it out",
            )
    return TableColumns(label, kinds)


def describe_columns(kinds: dict[str, Kind]) -> str:
    """Which columns are numeric and which text, in one short sentence.

    >>> describe_columns({"x": "number", "city": "text", "y": "number"})
    'numeric columns: x, y; text columns: city'
    """
    parts = []
    for kind, word in (("number", "numeric"), ("text", "text")):
        names = [name for name, found in kinds.items() if found == kind]
        more = f", … ({len(names)} in all)" if len(names) > NAMES_SHOWN else ""
        if names:
            parts.append(f"{word} columns: {printable(', '.join(names[:NAMES_SHOWN]))}{more}")
    return "; ".join(parts)


def require_label(names: list[str], label: str, source: Source) -> None:
    """Raise unless the columns are a label and something to learn from, each once."""
    if len(set(names)) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise DataError(f"`{source.name}` has the column `{printable(twice)}` twice", "rename one of them")
    if label not in names:
        listed = printable(", ".join(names[:20]))
        raise DataError(
            f"`{source.name}` has no label column `{label}`; it has {listed}", "`--label NAME` says which it is"
        )
    if len(names) == 1:
        raise DataError(f"`{source.name}` has no column besides the label", "check the separator, and --label")


def require_columns(first: TableColumns, columns: TableColumns, source: Source) -> None:
    """Raise unless a file has the columns of the first file, in any order."""
    if columns.kinds == first.kinds:
        return
    differences = [f"{name} is missing" for name in first.kinds if name not in columns.kinds]
    differences += [f"{name} is new" for name in columns.kinds if name not in first.kinds]
    differences += [
        f"{name} is {kind} instead of {first.kinds[name]}"
        for name, kind in columns.kinds.items()
        if first.kinds.get(name, kind) != kind
    ]
    raise DataError(
        f"`{source.name}` has other columns than the first file: {printable(', '.join(differences[:10]))}",
        "all files need the same columns",
    )
