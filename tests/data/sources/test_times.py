"""Times become hours, days of the week, and days since 1970."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.data.sources.times import as_numbers, hours_of, local_times, read_timestamps, weekdays_of
from paceline.errors import DataError

MOMENTS = st.datetimes(datetime.datetime(2, 1, 1), datetime.datetime(9998, 1, 1))


@given(st.lists(st.none() | MOMENTS, min_size=1), st.sampled_from(["s", "ms", "us"]))
def test_hours_and_weekdays_are_those_of_python(moments: list[datetime.datetime | None], unit: str) -> None:
    column = pa.array(moments, pa.timestamp("us")).cast(pa.timestamp(unit), safe=False)
    assert hours_of(column).to_pylist() == [None if one is None else str(one.hour).encode() for one in moments]
    days = [None if one is None else one.strftime("%a").encode() for one in moments]
    assert weekdays_of(column).to_pylist() == days
    for kind in (pa.date32(), pa.date64()):
        dates = pa.array([None if one is None else one.date() for one in moments], kind)
        assert weekdays_of(dates).to_pylist() == days


def test_times_of_day_have_hours() -> None:
    for kind in (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")):
        column = pa.array([datetime.time(0, 59, 59), None, datetime.time(23, 0)], kind)
        assert hours_of(column).to_pylist() == [b"0", None, b"23"]
        assert as_numbers(column).to_pylist()[2] == pytest.approx(23 / 24)


def test_times_in_a_zone_have_its_hours() -> None:
    moment = datetime.datetime(2026, 7, 1, 23, 30)
    column = pa.array([moment, None], pa.timestamp("us", "Europe/Rome"))
    times, problems = local_times("when", column)
    assert (hours_of(times).to_pylist(), weekdays_of(times).to_pylist()) == ([b"1", None], [b"Thu", None])
    assert problems == {}
    with pytest.raises(DataError, match=r"column when: .*No/Where"):
        local_times("when", pa.array([0], pa.timestamp("us", "No/Where")))


def test_times_as_numbers_are_days() -> None:
    column = pa.array([datetime.datetime(1970, 1, 2, 12), None], pa.timestamp("ns"))
    assert as_numbers(column).to_pylist() == [1.5, None]
    assert as_numbers(pa.array([datetime.date(1970, 1, 11)])).to_pylist() == [10.0]
    numbers = pa.array([3])
    assert as_numbers(numbers) is numbers


@pytest.mark.parametrize("ticks", [2**63 - 1, -(2**63), 10**18])
def test_times_that_are_no_dates_are_named(ticks: int) -> None:
    column = pa.array([0, ticks], pa.timestamp("s", "Europe/Rome"))
    times, problems = local_times("when", column)
    assert problems == {1: "the time is not within the years 1 to 9999"}
    assert hours_of(times).to_pylist() == [b"1", None]


@pytest.mark.parametrize("kind", [pa.large_binary(), pa.string(), pa.dictionary(pa.int32(), pa.large_binary())])
def test_text_is_read_as_timestamps(kind: Any) -> None:
    cells: list[Any] = ["2026-11-18 21:30:00", " 2026-11-18T21:30:00.5 ", "2026-11-18", "", None]
    column = pa.array([None if cell is None else cell.encode() for cell in cells]).cast(pa.string()).cast(
        pa.string() if kind == pa.string() else pa.large_binary()
    )  # fmt: skip
    times, problems = read_timestamps(column.dictionary_encode() if pa.types.is_dictionary(kind) else column)
    assert problems == {}
    day = datetime.datetime(2026, 11, 18)
    evening = datetime.timedelta(hours=21, minutes=30)
    assert times.to_pylist() == [day + evening, day + evening + datetime.timedelta(seconds=0.5), day, None, None]


def test_text_with_an_offset_becomes_utc() -> None:
    times, problems = read_timestamps(pa.array([b"2026-11-18 21:30:00+02:00", None]))
    assert times.to_pylist() == [datetime.datetime(2026, 11, 18, 19, 30), None]
    assert problems == {}


@pytest.mark.parametrize("encode", [False, True])
def test_text_that_is_not_a_timestamp_is_named(encode: bool) -> None:
    cells = [b"2026-11-18", b"yesterday", None, b"\xff", b"2026-11-18T20:00:00Z", b"yesterday"]
    column = pa.array(cells, pa.large_binary())
    times, problems = read_timestamps(column.dictionary_encode() if encode else column)
    wrong = {1: "`yesterday` is not a timestamp", 3: "`\\xff` is not a timestamp", 5: "`yesterday` is not a timestamp"}
    assert problems == wrong
    day = datetime.datetime(2026, 11, 18)
    assert times.to_pylist() == [day, None, None, None, day.replace(hour=20), None]
    assert np.array_equal(times.is_valid().to_numpy(False), [True, False, False, False, True, False])
