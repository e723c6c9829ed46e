"""In which of Arrow's types are columns in memory read? Text has one of the layouts that `data/sources/` knows."""

from __future__ import annotations

import pyarrow as pa

from paceline.errors import UsageError


def usable(found: pa.DataType) -> pa.DataType:
    """The type in which a column of this type is read.

    >>> usable(pa.string_view()), usable(pa.int8())
    (DataType(large_string), DataType(int8))
    """
    types = pa.types
    if types.is_dictionary(found):
        return pa.dictionary(pa.int32(), usable(found.value_type))
    if (types.is_list(found) or types.is_large_list(found)) and (
        _is_view(found.value_type) or types.is_null(found.value_type)
    ):
        return pa.large_list(pa.large_string())
    return pa.large_string() if _is_view(found) else found


def as_usable(column: pa.Array, wanted: pa.DataType, name: str) -> pa.Array:
    """The column in the type that `usable` gives for it; `name` is what messages call it."""
    if column.type == wanted:
        return column
    try:
        if pa.types.is_dictionary(wanted):
            dictionary = column.dictionary.cast(wanted.value_type)
            return pa.DictionaryArray.from_arrays(column.indices.cast(pa.int32()), dictionary)
        return column.cast(wanted)
    except pa.ArrowInvalid as error:
        raise UsageError(f"{name} cannot be read as {wanted}: {error}", "cast it first") from None


def _is_view(found: pa.DataType) -> bool:
    return bool(found in (pa.string_view(), pa.binary_view()))
