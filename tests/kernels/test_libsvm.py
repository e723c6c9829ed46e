"""The loop that reads LIBSVM text. tests/data/sources/test_libsvm.py tests what users see of it."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.kernels import problems
from paceline.kernels.libsvm import parse_libsvm
from paceline.kernels.text import Counts
from tests.kernels.texts import Found, room_for, rows_in


def parse(
    text: bytes, base: int = 1, limit: int = 1_000, most_bad: int = 100
) -> tuple[Counts, Found, list[list[int]], list[list[int]], list[int]]:
    room, close = room_for(text, most_bad), np.full((len(text), 3), -9, np.int64)
    counts = parse_libsvm(np.frombuffer(text, np.uint8), base, limit, room, close, True)
    rows = rows_in(room, counts.rows)
    return (
        counts,
        rows,
        room.bad[: counts.bad].tolist(),
        close[: counts.close].tolist(),
        room.lines[: counts.rows].tolist(),
    )


def test_rows_lines_and_counts() -> None:
    text = b"# head\n+1 3:0.5 7:2 # why\n\n-1 qid:7 1:0.25\t2:+.5 \r\n 0\n"
    counts, rows, bad, close, lines = parse(text)
    assert rows == [(1, [(2, 0.5), (6, 2.0)]), (-1, [(0, 0.25), (1, 0.5)]), (0, [])]
    assert lines == [2, 4, 5]
    assert counts == Counts(lines=5, rows=3, nonzeros=4, bad=0, close=0)
    assert (bad, close) == ([], [])


@pytest.mark.parametrize(
    ("line", "problem", "place"),
    [
        (b"one 1:1", problems.LABEL_NO_NUMBER, 0),
        (b"1:2 3:4", problems.LABEL_NO_NUMBER, 0),
        (b"nan 1:1", problems.LABEL_NOT_FINITE, 0),
        (b"1 3", problems.KEY_NO_NUMBER, 2),
        (b"1 1:1 x:2", problems.KEY_NO_NUMBER, 6),
        (b"1 0:1", problems.KEY_BELOW_BASE, 2),
        (b"1 1:1 1000:1", problems.KEY_TOO_LARGE, 6),
        (b"1 99999999999999999999:1", problems.KEY_TOO_LARGE, 2),
        (b"1 3:", problems.NO_NUMBER, 2),
        (b"1 3:1:2", problems.NO_NUMBER, 2),
        (b"1 3:inf", problems.NOT_FINITE, 2),
        (b"1 3:1e39", problems.NOT_FINITE, 2),
    ],
)
def test_a_bad_row_is_noted_with_its_place_and_leaves_nothing(line: bytes, problem: int, place: int) -> None:
    before = b"1 1:1\n"
    counts, rows, bad, _, lines = parse(before + line + b"\n0 2:1\n")
    assert bad == [[2, problem, len(before), len(before) + place]]
    assert rows == [(1, [(0, 1.0)]), (0, [(1, 1.0)])]
    assert lines == [1, 3]
    assert counts.nonzeros == 2


@pytest.mark.parametrize("base", [0, 1])
def test_the_first_and_the_last_index(base: int) -> None:
    _, rows, bad, _, _ = parse(b"1 %d:1 999:1\n" % base, base=base)
    assert rows == [(1, [(0, 1.0), (999 - base, 1.0)])]
    assert bad == []


def test_an_index_of_18_digits_is_read_digit_for_digit() -> None:
    _, rows, _, _, _ = parse(b"1 123456789012345678:1 12345678:1 123456789:1\n", base=0, limit=2**62)
    assert [key for key, _ in rows[0][1]] == [123456789012345678, 12345678, 123456789]


def test_it_ends_when_there_is_no_room_for_another_bad_row() -> None:
    counts, rows, bad, _, _ = parse(b"1 1:1\nx\nx\n1 2:1\n", most_bad=2)
    assert (counts.lines, counts.rows, counts.bad) == (3, 1, 2)
    assert [line for line, *_ in bad] == [2, 3]
    assert len(rows) == 1


def test_numbers_to_read_again_are_noted_except_in_bad_rows() -> None:
    """1 + 2**-24 is half-way between two float32. Nonzeros count from 0, the label of row r is -1 - r."""
    half = b"1.00000005960464477539062500001"
    text = b"1 1:5\n%b 1:7 2:%b\n%b 1:%b x\n" % (half, half, half, half)
    counts, _, _, close, _ = parse(text)
    assert [(nonzero, text[start:stop]) for nonzero, start, stop in close] == [(-2, half), (2, half)]
    assert (counts.rows, counts.close, counts.bad) == (2, 2, 1)
