"""What can a user give from memory?

A matrix (SciPy sparse, NumPy, a `Batch`), a table (pandas, Polars, lazy or not, Arrow, or any Arrow C stream),
a tuple of one of these with its labels and, maybe, its weights, or an iterable of all that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from paceline.data.memory.arrow_types import as_usable, usable
from paceline.data.sources.table_columns import is_number_or_text
from paceline.data.sparse.batch import Batch
from paceline.errors import UsageError

WHAT = "a SciPy CSR matrix, a NumPy array, a pandas or Polars frame, an Arrow table, (X, y), or an iterable of these"


class Given(NamedTuple):
    """Rows as a user gave them: a matrix or a table, and labels and weights unless columns of the table have them.

    Labels and weights are a column's name, or one per row.
    """

    features: Any
    labels: Any = None
    weights: Any = None


def is_matrix(data: Any) -> bool:
    """Whether this is a matrix: its columns have numbers instead of names."""
    return isinstance(data, Batch) or hasattr(data, "tocsr") or (isinstance(data, np.ndarray) and data.ndim == 2)


def is_table(data: Any) -> bool:
    """Whether this is a table: its columns have names and types."""
    return hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__") or is_lazy(data)


def is_lazy(data: Any) -> bool:
    """Whether this is a frame of Polars that has not been computed."""
    return hasattr(data, "collect_schema") and not hasattr(data, "__arrow_c_stream__")


def refuse_mixture(given: Given, *, matrices: bool) -> None:
    """Raise for a batch of the other form than the first."""
    if is_matrix(given.features) != matrices:
        raise UsageError("some batches are tables, and some are matrices", "give only tables, or only matrices")


def is_in_memory(data: Any) -> bool:
    """Whether `data` is rows in memory; otherwise it is the name of a dataset."""
    return not (isinstance(data, str) or hasattr(data, "__fspath__"))


def names_of_files(data: Any) -> list[str] | None:
    """The names in `data`, a name or a list of names; None for rows in memory.

    >>> names_of_files("a.csv"), names_of_files(["a.csv", "b.csv"]), names_of_files(np.eye(2)), names_of_files([])
    (['a.csv'], ['a.csv', 'b.csv'], None, None)
    """
    names = data if isinstance(data, list) else [data]
    return None if not names or any(is_in_memory(name) for name in names) else [str(name) for name in names]


def batches_of(data: Any, labels: Any = None, weights: Any = None) -> Iterator[Given]:
    """What was given, batch by batch. `labels` and `weights` may be in `data` instead.

    >>> [batch.labels for batch in batches_of([(np.eye(2), [0, 1]), (np.eye(2), [1, 1])])]
    [[0, 1], [1, 1]]
    """
    single = _single(data, labels, weights)
    if single is not None:
        return iter([single])
    if isinstance(data, np.ndarray):
        raise UsageError(f"the data is an array of shape {data.shape}", "give rows and columns: [rows, columns]")
    if isinstance(data, (str, PathLike)):
        raise UsageError(f"`{data}` is a name, and rows in memory are wanted here", "read the file first")
    if not isinstance(data, Iterable) or isinstance(data, (bytes, dict)):
        raise UsageError(f"cannot read rows from a {type(data).__name__}", f"give {WHAT}")
    for name, value in (("label", labels), ("weight", weights)):
        if value is not None and not isinstance(value, str):
            raise UsageError(f"`{name}` is an array, but the data comes in batches", "give (X, y) batches")
    if isinstance(data, list) and len(data) in (2, 3) and _is_column(data[1]) and not _is_column(data[0]):
        raise UsageError("the data is a list, which holds batches, but the second is a column", "give a tuple: (X, y)")
    batches = iter(data)
    first = next(batches, None)
    if first is None:
        raise UsageError("the data is empty", f"give {WHAT}")
    if _single(first, labels, weights) is None:
        hint = "give (X, y) with X a NumPy array" if isinstance(first, (list, tuple, np.ndarray)) else f"give {WHAT}"
        raise UsageError(f"the data is a {type(data).__name__} of {type(first).__name__}", hint)
    return (_batch(item, labels, weights) for item in chain([first], batches))


def _batch(data: Any, labels: Any, weights: Any) -> Given:
    found = _single(data, labels, weights)
    if found is None:
        raise UsageError(f"a batch is a {type(data).__name__}", "all batches are matrices, tables, or (X, y)")
    return found


def _single(data: Any, labels: Any, weights: Any) -> Given | None:
    """A matrix or a table with its labels and weights; None if `data` is neither."""
    if isinstance(data, Batch):
        return Given(data, data.labels if labels is None else labels, data.weights if weights is None else weights)
    if isinstance(data, tuple) and len(data) in (2, 3) and (is_matrix(data[0]) or is_table(data[0])):
        if labels is not None and not isinstance(labels, str):
            raise UsageError("labels are given twice: in (X, y) and as `label`", "give them once")
        if len(data) == 3 and weights is not None:
            raise UsageError("weights are given twice: in (X, y, weights) and as `weight`", "give them once")
        return Given(data[0], data[1], data[2] if len(data) == 3 else weights)
    return Given(data, labels, weights) if is_matrix(data) or is_table(data) else None


def _is_column(values: Any) -> bool:
    """Whether this is one value per row: a list of them, or an array or a series of one dimension."""
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return True
    if isinstance(values, list):
        return not any(hasattr(value, "__len__") and not isinstance(value, (str, bytes)) for value in values)
    return len(getattr(values, "shape", ())) == 1


def refuse_masked(values: Any, what: str) -> Any:
    """The same; raises for an array in which some values are masked, because a plain array would show them."""
    if np.ma.is_masked(values):
        raise UsageError(f"{what} have masked values", "leave these rows out, or fill them: `filled(0)`")
    return values


def column_of(values: Any, num_rows: int, what: str) -> pa.Array:
    """Labels or weights, one per row, as an Arrow column.

    >>> column_of(np.array([True, False]), 2, "labels").to_pylist()
    [1, 0]
    """
    try:
        if hasattr(values, "__arrow_c_stream__") and len(getattr(values, "shape", ())) < 2:
            found = pa.chunked_array(values).combine_chunks()
        else:
            array = values if hasattr(values, "__arrow_c_array__") else np.asanyarray(values)
            found = pa.array(_plain(array), from_pandas=True) if isinstance(array, np.ndarray) else pa.array(array)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        shape = getattr(values, "shape", ())
        many = f" of shape {shape}" if len(shape) > 1 else f": {error}"
        raise UsageError(f"{what} cannot be read from a {type(values).__name__}{many}", "give one per row") from None
    if isinstance(found, pa.ChunkedArray):
        found = found.combine_chunks()
    if pa.types.is_boolean(found.type):
        found = found.cast(pa.uint8())
    found = as_usable(found, usable(found.type), what)
    if not is_number_or_text(found.type):
        raise UsageError(f"{what} are of the type {found.type}", "labels are numbers or text, and weights are numbers")
    if len(found) != num_rows:
        raise UsageError(f"{num_rows:,} rows, but {len(found):,} {what}", "give one per row")
    return found


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """An array of one dimension, if there is one column, in this machine's byte order. Masks stay."""
    array = array.view(np.ndarray) if isinstance(array, np.matrix) else array
    array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
