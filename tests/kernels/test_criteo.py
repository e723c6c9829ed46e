"""The loops that read Criteo lines. tests/data/sources/test_criteo.py tests what users see of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paceline.kernels import problems
from paceline.kernels.criteo import INTEGERS, STRINGS, bucket_integers, parse_criteo, scale_integers
from paceline.kernels.hashing import salt_of
from paceline.kernels.text import Counts
from tests.kernels.test_hashing import reference
from tests.kernels.texts import Found, room_for, rows_in

MASK = 2**20 - 1
INTEGER_SALTS = np.array([salt_of(f"I{j + 1}") for j in range(INTEGERS)], np.uint64)
STRING_SALTS = np.array([salt_of(f"C{j + 1}") for j in range(STRINGS)], np.uint64)


def parse(
    text: bytes, separator: bytes = b"\t", before_label: int = 0, most_bad: int = 100
) -> tuple[Counts, Found, list[list[int]]]:
    room = room_for(text, most_bad)
    array = np.frombuffer(text, np.uint8)
    counts = parse_criteo(array, separator[0], before_label, INTEGER_SALTS, STRING_SALTS, np.uint64(MASK), room, True)
    return counts, rows_in(room, counts.rows), room.bad[: counts.bad].tolist()


def line(label: bytes = b"1", integers: tuple[bytes, ...] = (), strings: tuple[bytes, ...] = (),
         separator: bytes = b"\t") -> bytes:  # fmt: skip
    fields = [*integers, *[b""] * (INTEGERS - len(integers)), *strings, *[b""] * (STRINGS - len(strings))]
    return separator.join([label, *fields]) + b"\n"


def key_of(name: str, text: bytes) -> int:
    return INTEGERS + (reference(name, text) & MASK)


BLANKS = [(key_of(f"I{j}", b""), 1.0) for j in range(1, INTEGERS + 1)]


@pytest.mark.parametrize("separator", [b"\t", b","])
@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_integers_keep_their_value_and_strings_are_hashed(separator: bytes, ending: bytes) -> None:
    text = line(b"0", (b"7", b"", b"-2"), (b"68fd1e64", b"", b"\xc3\xa4"), separator).replace(b"\n", ending)
    counts, rows, bad = parse(text, separator)
    strings = [(key_of("C1", b"68fd1e64"), 1.0), (key_of("C3", b"\xc3\xa4"), 1.0)]
    assert rows == [(0, [(0, 7.0), BLANKS[1], (2, -2.0), *BLANKS[3:], *strings])]
    assert counts == Counts(lines=1, rows=1, nonzeros=15, bad=0, close=0)
    assert bad == []


def test_columns_before_the_label_and_blank_lines_are_passed_over() -> None:
    counts, rows, _ = parse(b"\n17\tx\t" + line(b"1") + b"\r\n18\ty\t" + line(b"0"), before_label=2)
    assert [label for label, _ in rows] == [1, 0]
    assert (counts.lines, counts.rows) == (4, 2)


@pytest.mark.parametrize(
    ("bad_line", "problem", "place"),
    [
        (line(b"yes"), problems.LABEL_NO_NUMBER, 0),
        (line(b"1x"), problems.LABEL_NO_NUMBER, 0),
        (line(b"inf"), problems.LABEL_NOT_FINITE, 0),
        (b"1\n", problems.TOO_FEW_FIELDS, 0),
        (b"1\t2\t3\n", problems.TOO_FEW_FIELDS, 4),
        (line(b"1", (b"5", b"2x")), problems.NO_NUMBER, 4),
        (line(b"1", (b"5", b"1e99")), problems.NOT_FINITE, 4),
        (line()[:-2] + b"\n", problems.TOO_FEW_FIELDS, 39),
        (line()[:-1] + b"\tx\n", problems.TOO_MANY_FIELDS, 40),
    ],
)
def test_a_bad_row_is_noted_with_its_place_and_leaves_nothing(bad_line: bytes, problem: int, place: int) -> None:
    good = line(b"1", (b"3",))
    counts, rows, bad = parse(good + bad_line + good)
    assert bad == [[2, problem, len(good), len(good) + place]]
    assert rows == [(1, [(0, 3.0), *BLANKS[1:]])] * 2
    assert counts.nonzeros == 2 * INTEGERS


def test_it_ends_when_there_is_no_room_for_another_bad_row() -> None:
    counts, rows, bad = parse(line() + b"x\nx\n" + line(), most_bad=2)
    assert (counts.lines, len(rows), len(bad)) == (3, 1, 2)


NUMBERS = [0.0, 1.0, 2.0, 4095.0, 4096.0, 2.5, 1e9, -1.0, -2.5, -1e12]


def test_integers_on_a_log_scale() -> None:
    """Small integers come from a table, others are computed. Strings stay as they are."""
    keys = np.array([*[12] * len(NUMBERS), 13], np.uint32)
    values = np.array([*NUMBERS, 1], np.float32)
    scale_integers(keys, values)
    expected = [math.copysign(0.3 * math.log1p(abs(float(np.float32(x)))), x) for x in NUMBERS]
    np.testing.assert_allclose(values, [*expected, 1], rtol=1e-6)


def test_integers_in_buckets() -> None:
    """As text, which has the documented hash; keys of strings begin at 0 then."""
    keys = np.array([*[3] * len(NUMBERS), INTEGERS + 5], np.uint32)
    values = np.array([*NUMBERS, 1], np.float32)
    bucket_integers(keys, values, INTEGER_SALTS, np.uint64(MASK), np.empty(32, np.uint8), None)
    texts = [f"b{math.floor(math.log(x) ** 2)}" if x > 2 else str(math.floor(max(x, -1e9))) for x in NUMBERS]
    assert keys.tolist() == [*(reference("I4", text.encode()) & MASK for text in texts), 5]
    assert values.tolist() == [1.0] * len(keys)
