"""How do timestamps, dates and times of day become categories, or numbers?

Hours and days of the week are those of a column's time zone, or as written if it has none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from paceline.data.sources.cells import dictionary_of
from paceline.data.sources.parsed import shown
from paceline.errors import DataError, printable

SECONDS_PER_DAY = 86_400
PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
FIRST_DAY, LAST_DAY = -719_162, 2_932_896  # of the years 1 and 9999, in days since 1970
FIRST_WEEKDAY = 3  # 1970-01-01 was a Thursday
WEEKDAYS = pa.array([b"Mon", b"Tue", b"Wed", b"Thu", b"Fri", b"Sat", b"Sun"], pa.large_binary())
HOURS = pa.array([str(hour).encode() for hour in range(24)], pa.large_binary())
TIMES = pa.timestamp("us")  # what text is read as

Ints = NDArray[np.int64]


def is_time(found: pa.DataType) -> bool:
    """Whether cells of this type are timestamps, dates or times of day."""
    return bool(pa.types.is_timestamp(found) or pa.types.is_date(found) or pa.types.is_time(found))


def as_numbers(column: pa.Array) -> pa.Array:
    """The same column, with times as days: since 1970 in UTC, or since midnight."""
    if not is_time(column.type):
        return column
    ticks, valid = _ticks(column)
    return pa.array(ticks / _ticks_per_day(column.type), mask=~valid)


def hours_of(column: pa.Array) -> pa.Array:
    """The hour of each timestamp or time of day, as text."""
    ticks, valid = _ticks(column)
    hours = ticks % _ticks_per_day(column.type) // (_ticks_per_day(column.type) // 24)
    return _categories(hours, valid, HOURS)


def weekdays_of(column: pa.Array) -> pa.Array:
    """The day of the week of each timestamp or date, as text."""
    ticks, valid = _ticks(column)
    return _categories((ticks // _ticks_per_day(column.type) + FIRST_WEEKDAY) % 7, valid, WEEKDAYS)


def local_times(name: str, column: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """The same times in their own time zone, and what is wrong with some of them.

    Times that are not within the years 1 to 9999 become null.
    """
    ticks, valid = _ticks(column)
    days = ticks // _ticks_per_day(column.type)
    outside = valid & ((days < FIRST_DAY + 1) | (days > LAST_DAY - 1))
    problems = dict.fromkeys(np.flatnonzero(outside).tolist(), "the time is not within the years 1 to 9999")
    if problems:
        column = pa.compute.if_else(pa.array(outside), pa.scalar(None, column.type), column)
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        try:
            column = pa.compute.local_timestamp(column)
        except pa.ArrowInvalid as error:
            message = f"column {printable(name)}: {printable(str(error))}"
            raise DataError(message, "convert it to UTC, or leave it out with --drop") from None
    return column, problems


def read_timestamps(column: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """Text as timestamps, and what is wrong with some of it. Those with an offset from UTC become times of UTC."""
    if pa.types.is_dictionary(column.type):
        places, valid, dictionary = dictionary_of(column)
        times, wrong = read_timestamps(dictionary)
        problems = {row: wrong[place] for row, place in enumerate(places.tolist()) if place in wrong and valid[row]}
        return times.take(pa.array(places, mask=~valid)), problems
    try:
        cells = pa.compute.utf8_trim_whitespace(column.cast(pa.large_string()))
        cells = pa.compute.if_else(pa.compute.equal(cells, ""), pa.scalar(None, cells.type), cells)
        return _cast_times(cells), {}
    except pa.ArrowInvalid:
        return _read_each(column.cast(pa.large_binary()))


def _read_each(column: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """Cells of which some are wrong, or some have an offset and some have none."""
    known: dict[bytes, Any] = {}
    times, problems = [], {}
    for row, cell in enumerate(column.to_pylist()):
        text = (cell or b"").strip()
        if text and text not in known:
            known[text] = _read_one(text)
        time = known[text] if text else None
        times.append(time)
        if text and time is None:
            problems[row] = f"{shown(text)} is not a timestamp"
    return pa.array(times, TIMES), problems


def _read_one(text: bytes) -> int | None:
    try:
        return int(_cast_times(pa.array([text], pa.binary()).cast(pa.large_string()))[0].value)
    except pa.ArrowInvalid:
        return None


def _cast_times(cells: pa.Array) -> pa.Array:
    try:
        return cells.cast(TIMES)
    except pa.ArrowInvalid:
        return cells.cast(pa.timestamp("us", "UTC")).cast(TIMES)


def _categories(numbers: Ints, valid: NDArray[np.bool_], names: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int32(), mask=~valid), names)


def _ticks(column: pa.Array) -> tuple[Ints, NDArray[np.bool_]]:
    """Times as the whole numbers that Arrow stores, 0 where there is none, and where there are some."""
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    width = pa.int32() if column.type.bit_width == 32 else pa.int64()
    return column.view(width).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64), valid


def _ticks_per_day(found: pa.DataType) -> int:
    if pa.types.is_date(found):
        return 1 if found == pa.date32() else SECONDS_PER_DAY * PER_SECOND["ms"]
    return SECONDS_PER_DAY * PER_SECOND[found.unit]
