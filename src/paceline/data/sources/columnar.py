"""How do the columns of a table become rows, whether it comes from Parquet, Arrow or CSV?

One column is the label, and one may be the rows' weight. Every other column is a feature. Numeric columns (integers,
floats, booleans) are the keys 0, 1, … in the order of the columns, with the cell as value; zeros are left out, as they
change nothing. Text columns are hashed with the column's name as salt (`kernels/hashing.py`) to the keys after these,
value 1. Nulls and blank cells are absent. All files have the columns of the first. Each column is a field, if fields
are asked for.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from paceline.data.preparation import column_differences
from paceline.data.prepare_settings import PrepareConfig
from paceline.data.sources.cells import TEXT_TYPES, dictionary_of, read_names, read_numbers, text_of
from paceline.data.sources.files import Source
from paceline.data.sources.parsed import WEIGHT_WORDS, BadRow, Parsed, input_key_dtype
from paceline.data.sparse.batch import Batch
from paceline.errors import DataError, printable
from paceline.kernels.columns import hash_cells
from paceline.kernels.hashing import salt_of
from paceline.kernels.optional import MOST_FIELDS

Kind = Literal["number", "text"]

NAMES_SHOWN = 8
LABEL_HINT = "every row needs a label, a finite number or the name of a class; --label says which column has it"
NUMBER_HINT = "numeric columns hold finite numbers, and nulls or blanks where one is missing"


class Roles(NamedTuple):
    """Which column is the label, and which the weight of rows; empty if they have none."""

    label: str
    weight: str = ""

    @staticmethod
    def of(config: PrepareConfig) -> Roles:
        return Roles(config.label, config.weight)

    @property
    def names(self) -> list[str]:
        return [self.label, self.weight] if self.weight else [self.label]


class TableColumns(NamedTuple):
    """The columns of a table except its label and weight, and whether each is numeric or text."""

    roles: Roles
    kinds: dict[str, Kind]


class Columnar:
    """Tables of one set of columns, turned into rows; `Csv` and `Tables` know the files."""

    def __init__(
        self, columns: TableColumns, hash_bits: int, *, fields: bool = False, named_labels: bool = False
    ) -> None:
        label, weight = columns.roles
        self.columns = columns
        self.label_column = f"column {label}"
        self._read_labels = read_names if named_labels else read_numbers
        self.weighted = bool(weight)
        self.fields = tuple(columns.kinds) if fields else ()
        if len(self.fields) > MOST_FIELDS:
            raise DataError(f"{len(self.fields):,} columns; there can be {MOST_FIELDS:,} fields", "leave --fields out")
        self.notes: tuple[str, ...] = (describe_columns(columns.kinds),)
        self.settings: dict[str, Any] = {"label": label, "hash_bits": hash_bits, "columns": columns.kinds}
        self.settings |= {"weight": weight} if weight else {}
        self._mask = np.uint64((1 << hash_bits) - 1)
        self.num_numeric = sum(kind == "number" for kind in columns.kinds.values())
        has_text = self.num_numeric < len(columns.kinds)
        self.features = self.num_numeric + (1 << hash_bits if has_text else 0)

    def rows(self, table: pa.RecordBatch, row_numbers: NDArray[np.int64], most_bad: int) -> Parsed:
        """Turn a table into rows; row i of it is number `row_numbers[i]` of the chunk."""
        shape = (table.num_rows, len(self.columns.kinds))
        keys: NDArray[Any] = np.zeros(shape, input_key_dtype(self.features))
        values, present = np.ones(shape, np.float32), np.zeros(shape, bool)
        label = self._read_labels(table.column(self.columns.roles.label))
        problems = dict.fromkeys(np.flatnonzero(~label.present).tolist(), "no label") | label.problems
        bad = {row: BadRow(0, self.label_column, problem, LABEL_HINT) for row, problem in problems.items()}
        weights = self._weights(table, bad) if self.weighted else None
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
        batch = Batch(
            label.numbers[good].astype(np.float32),
            offsets,
            keys[present],
            values[present],
            None if weights is None else weights[good],
            np.nonzero(present)[1].astype(np.uint16) if self.fields else None,
        ).distinct()
        bad_rows = [bad[row]._replace(row=int(row_numbers[row])) for row in sorted(bad)]
        return Parsed(batch, row_numbers[good], table.num_rows, bad_rows[:most_bad], label.names)

    def _weights(self, table: pa.RecordBatch, bad: dict[int, BadRow]) -> NDArray[np.float32]:
        """The weights of rows; rows whose weight is not one are entered into `bad`, unless they are there."""
        name = self.columns.roles.weight
        cells = read_numbers(table.column(name))
        problems = dict.fromkeys(np.flatnonzero(~cells.present).tolist(), "no weight")
        problems |= {
            row: f"the weight is `{cells.numbers[row]:g}`" for row in np.flatnonzero(cells.numbers < 0).tolist()
        }
        for row, problem in (problems | cells.problems).items():
            bad.setdefault(row, BadRow(0, f"column {printable(name)}", problem, f"a weight is {WEIGHT_WORDS}"))
        return cells.numbers.astype(np.float32)

    def _hash(self, name: str, column: pa.Array) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        if pa.types.is_dictionary(column.type):
            places, valid, dictionary = dictionary_of(column)
            hashed, filled = self._hash(name, dictionary)
            return hashed[places], filled[places] & valid
        text, offsets, filled = text_of(column)
        keys: NDArray[Any] = np.empty(len(column), input_key_dtype(self.features))
        hash_cells(text, offsets, salt_of(name), self._mask, np.uint64(self.num_numeric), keys)
        return keys, filled


def columns_of(schema: pa.Schema, roles: Roles, source: Source) -> TableColumns:
    """The columns of a typed table: which are numeric and which text."""
    require_roles(schema.names, roles, source)
    kinds: dict[str, Kind] = {}
    for field in schema:
        types = pa.types
        kind = field.type.value_type if types.is_dictionary(field.type) else field.type
        if field.name in roles.names:
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
    return TableColumns(roles, kinds)


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


def require_roles(names: list[str], roles: Roles, source: Source) -> None:
    """Raise unless the columns are a label, a weight if one is wanted, and something to learn from, each once."""
    if len(set(names)) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise DataError(f"`{source.name}` has the column `{printable(twice)}` twice", "rename one of them")
    for role, name in roles._asdict().items():
        if name and name not in names:
            listed = printable(", ".join(names[:20]))
            raise DataError(
                f"`{source.name}` has no {role} column `{name}`; it has {listed}", f"`--{role} NAME` says which it is"
            )
    if len(names) == len(roles.names):
        besides = " and the weight" if roles.weight else ""
        raise DataError(f"`{source.name}` has no column besides the label{besides}", "check the separator, and --label")


def require_columns(first: TableColumns, columns: TableColumns, source: Source) -> None:
    """Raise unless a file has the columns of the first file, in any order."""
    if columns.kinds == first.kinds:
        return
    differences = column_differences(first.kinds, columns.kinds)
    raise DataError(
        f"`{source.name}` has other columns than the first file: {printable(', '.join(differences[:10]))}",
        "all files need the same columns",
    )
