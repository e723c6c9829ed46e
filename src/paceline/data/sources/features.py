"""Which categories do the columns of a table become? Each has the name of its feature, and texts as its values."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from paceline.data.limits import ColumnKind
from paceline.data.sources.bins import in_bins
from paceline.data.sources.cells import dictionary_of, holds_text, read_numbers
from paceline.data.sources.times import as_numbers, hours_of, local_times, read_timestamps, weekdays_of
from paceline.errors import DataError, printable

PLAIN_INTEGER = re.compile(rb"-?[1-9][0-9]{0,30}|0")
INTEGER = re.compile(rb"[ \t]*[+-]?[0-9]{1,31}[ \t]*")
NUMBER = re.compile(rb"[ \t]*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[ \t]*")
CROSS = "×"  # between the columns of a cross, and between its values
# How a column without any cell is read.
OF_NULLS: dict[ColumnKind, pa.DataType] = {
    "list": pa.list_(pa.binary()),
    "timestamp": pa.timestamp("us"),
    "date": pa.date32(),
    "time": pa.time64("us"),
}


class Feature(NamedTuple):
    """Texts to be hashed: one per row, or, if `rows` says in which row each is, any number per row."""

    name: str
    cells: pa.Array
    rows: NDArray[np.int64] | None = None


def feature_names(name: str, kind: ColumnKind) -> list[str]:
    """The names of the features that a column becomes.

    >>> feature_names("when", "timestamp"), feature_names("town", "text")
    (['when.hour', 'when.weekday'], ['town'])
    """
    parts: dict[ColumnKind, list[str]] = {"timestamp": ["hour", "weekday"], "date": ["weekday"], "time": ["hour"]}
    return [f"{name}.{part}" for part in parts[kind]] if kind in parts else [name]


def read_features(
    name: str, kind: ColumnKind, column: pa.Array, edges: Mapping[str, Sequence[float]]
) -> tuple[list[Feature], dict[int, str]]:
    """The features of a column that is not a number, and what is wrong with some of its rows."""
    if pa.types.is_null(column.type) and kind in OF_NULLS:
        column = pa.nulls(len(column), OF_NULLS[kind])
    if kind == "text":
        return [Feature(name, _as_text(name, column))], {}
    if kind == "category":
        return [Feature(name, _spelled_alike(_as_text(name, column)))], {}
    if kind == "bins":
        cells = read_numbers(as_numbers(column))
        return [Feature(name, in_bins(cells.numbers, cells.present, edges[name]))], cells.problems
    if kind == "list":
        rows = np.repeat(np.arange(len(column)), pa.compute.list_value_length(column).fill_null(0).to_numpy())
        return [Feature(name, _as_text(name, column.flatten()), rows)], {}
    times, problems = read_timestamps(column) if holds_text(column.type) else (column, {})
    times, outside = local_times(name, times)
    read = {"hour": hours_of, "weekday": weekdays_of}
    features = [Feature(one, read[one.rpartition(".")[2]](times)) for one in feature_names(name, kind)]
    return features, problems | outside


def _spelled_alike(column: pa.Array) -> pa.Array:
    """A column of text in which equal numbers have equal texts, so that 7, 07 and 7.0 are one category."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    places, valid, dictionary = dictionary_of(encoded)
    texts = [spelling(cell) for cell in dictionary.cast(pa.large_binary()).fill_null(b"").to_pylist()]
    return pa.DictionaryArray.from_arrays(pa.array(places, pa.int32(), mask=~valid), pa.array(texts, pa.large_binary()))


def spelling(cell: bytes) -> bytes:
    """A number as every source spells it; what is not a number stays as it is.

    >>> [spelling(cell) for cell in (b"7", b"07", b"+7.0", b"7e0", b"7.50", b"1e300", b"seven", b"")]
    [b'7', b'7', b'7', b'7', b'7.5', b'1e+300', b'seven', b'']
    """
    if PLAIN_INTEGER.fullmatch(cell):
        return cell
    if not NUMBER.fullmatch(cell):
        return cell
    number = float(cell)
    if not math.isfinite(number):
        return cell
    if INTEGER.fullmatch(cell):
        return b"%d" % int(cell)
    return b"%d" % number if number == int(number) and abs(number) < 2**53 else repr(number).encode()


def _as_text(name: str, column: pa.Array) -> pa.Array:
    """A column of numbers or times as text; text stays as it is."""
    if holds_text(column.type):
        return column
    try:
        if pa.types.is_dictionary(column.type):
            places, valid, dictionary = dictionary_of(column)
            return pa.DictionaryArray.from_arrays(
                pa.array(places, pa.int32(), mask=~valid), dictionary.cast(pa.large_string())
            )
        return column.cast(pa.large_string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        message = f"column {printable(name)} cannot be read as text: {printable(str(error))}"
        raise DataError(message, "convert it to text first") from None
