"""Which categories do the columns of a table become? Each has the name of its feature, and texts as its values."""

from __future__ import annotations

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

CROSS = "×"  # between the columns of a cross, and between its values


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


def name_of_value(name: str, value: str) -> str:
    """What a feature with one value is called: a text, a bin, or the values of a cross.

    >>> name_of_value("town", "Rome"), name_of_value("town×when.hour", "Rome×13")
    ('town=Rome', 'town×when.hour=Rome×13')
    """
    return f"{name}={value}"


def read_features(
    name: str, kind: ColumnKind, column: pa.Array, edges: Mapping[str, Sequence[float]]
) -> tuple[list[Feature], dict[int, str]]:
    """The features of a column that is not a number, and what is wrong with some of its rows."""
    if kind == "text":
        return [Feature(name, _as_text(name, column))], {}
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
