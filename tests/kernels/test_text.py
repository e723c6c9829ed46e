from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paceline.kernels.text import (
    CLOSE,
    EXACT,
    NUMBER_INFINITE,
    NUMBER_MISSING,
    read_number,
    read_short_number,
)
from paceline.kernels.words import count_digits, read_digits

DIGITS = st.text("0123456789", min_size=1, max_size=25)
DECIMALS = st.builds(
    lambda sign, whole, fraction, exponent: sign + whole + fraction + exponent,
    st.sampled_from(["", "-", "+"]),
    DIGITS,
    st.one_of(st.just(""), DIGITS.map(lambda digits: "." + digits)),
    st.one_of(st.just(""), st.integers(-60, 45).map(lambda power: f"e{power}")),
)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


def read(text: str, reader: Any = read_number) -> tuple[int, float, int]:
    trust, value, end = reader(np.frombuffer(text.encode() + b"\n" + b" " * 20, np.uint8), 0)
    return trust, value, end


def as_float32(text: str) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(float(text)))


@given(st.one_of(DECIMALS, FLOATS.map(repr), st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr)))
def test_numbers_round_to_the_float32_that_python_gives(text: str) -> None:
    for reader in (read_number, read_short_number):
        trust, value, end = read(text, reader)
        if trust == NUMBER_INFINITE:
            assert abs(float(text)) > 3.4028235e38
            continue
        assert end == len(text)
        if trust == EXACT:
            assert float(np.float32(value)) == as_float32(text)
        else:
            assert trust == CLOSE
            assert math.isclose(value, float(text), rel_tol=1e-14)


@given(st.integers(0, 2**30), st.integers(-140, 120))
def test_half_way_between_two_float32_is_exact_or_left_to_python(mantissa: int, power: int) -> None:
    """Numbers in the middle of two float32, and a hair beside it, spelled out in full."""
    middle = math.ldexp(2 * mantissa + 1 | 1 << 25, power)
    for number in (middle, math.nextafter(middle, 0), math.nextafter(middle, math.inf)):
        text = f"{number:.40g}" if "e" not in f"{number:.40g}" else repr(number)
        trust, value, _ = read(text)
        assert trust in (CLOSE, NUMBER_INFINITE) or float(np.float32(value)) == as_float32(text)


def test_texts_that_are_no_numbers() -> None:
    for text in ("", "x", "-", "+", ".", "e5", "-.e1", " 1"):
        assert read(text)[0] == NUMBER_MISSING, text
    for text in ("inf", "-INF", "Infinity", "nan", "NaN", "1e39", "-1e400", "9" * 60, "1e99999999999999999999"):
        assert read(text)[0] == NUMBER_INFINITE, text
    for text in ("1e-400", "0e999", "-0", "0." + "0" * 80 + "1"):
        assert read(text)[:2] == (EXACT, 0.0), text


def test_a_number_ends_where_it_stops_being_one() -> None:
    for text, length in (("1 2", 1), ("1e", 1), ("1e+", 1), ("2.5.5", 3), ("12abc", 2), ("1:2", 1), ("+.5x", 3)):
        assert read(text)[2] == length, text
        assert read(text, read_short_number)[2] == length, text


@given(st.binary(max_size=60))
def test_any_bytes_can_be_looked_at(data: bytes) -> None:
    text = np.frombuffer(data + b"\n", np.uint8)
    for start in range(len(text)):
        for reader in (read_number, read_short_number):
            _, _, end = reader(text, start)
            assert start <= end < len(text)


@given(st.text("0123456789", min_size=8, max_size=8), st.integers(0, 8))
def test_words_of_digits(digits: str, count: int) -> None:
    value = int.from_bytes(digits[:count].encode().ljust(8, b":"), "little")
    assert count_digits(np.uint64(value)) == count
    if count:
        assert read_digits(np.uint64(value), count) == int(digits[:count])
