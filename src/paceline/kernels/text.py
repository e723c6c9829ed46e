"""How are numbers read from the bytes of a text file?

The text is a uint8 array whose last byte is a newline, so that no loop over a line needs to look at the size. A row
that does not parse raises nothing here: its line, what is wrong (`Problem`) and where go into an array, and the next
line is read.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.jit import inlined
from paceline.kernels.words import WORD_BYTES, count_digits, load_word, read_digits

Bytes = NDArray[np.uint8]

signed: Any = np.int64  # a plain integer to type checkers, which np.int64 is not

TAB, NEWLINE, RETURN, SPACE, HASH, QUOTE = 9, 10, 13, 32, 35, 34
PLUS, MINUS, POINT, ZERO, ONE, COLON = 43, 45, 46, 48, 49, 58
LETTER_E = 101
INF, INFINITY, NAN = (np.frombuffer(word, np.uint8) for word in (b"inf", b"infinity", b"nan"))
LOWER = 32  # the bit that makes an ASCII letter lower-case


class Problem(IntEnum):
    """What is wrong with a row."""

    NONE = 0
    NO_NUMBER = 1
    NOT_FINITE = 2
    LABEL_NO_NUMBER = 3
    LABEL_NOT_FINITE = 4
    KEY_NO_NUMBER = 5
    KEY_BELOW_BASE = 6
    KEY_TOO_LARGE = 7
    TOO_FEW_FIELDS = 8
    TOO_MANY_FIELDS = 9
    DATA_CHECKSUM = 10
    NO_EXAMPLE = 11
    NO_LABEL = 12
    NO_INDEX = 13
    LENGTHS_DIFFER = 14


class Counts(NamedTuple):
    """How much a kernel read and wrote; `close` numbers must be read again in Python."""

    lines: int
    rows: int
    nonzeros: int
    bad: int
    close: int


NONE = int(Problem.NONE)
NO_NUMBER, NOT_FINITE = int(Problem.NO_NUMBER), int(Problem.NOT_FINITE)
LABEL_NO_NUMBER, LABEL_NOT_FINITE = int(Problem.LABEL_NO_NUMBER), int(Problem.LABEL_NOT_FINITE)

# How far to trust what `read_number` found.
EXACT, CLOSE, NUMBER_MISSING, NUMBER_INFINITE = 0, 1, 2, 3

POWERS_OF_TEN = np.array([float(f"1e{power}") for power in range(80)])
EXACT_MANTISSA = np.uint64(1 << 53)
EXACT_POWER = 22  # 10**22 is the largest power of ten that a double holds exactly
FULL_MANTISSA = np.uint64(10**18)  # from here on another digit might not fit into 64 bits
FLOAT32_OVERFLOW = 3.4028235677973366e38  # half-way from the largest float32 to the next power of two
DOUBT = 2.0**-49


@inlined
def read_number(text: Bytes, start: int) -> tuple[int, float, int]:
    """The decimal number that begins at `start`: how far to trust it, its value, and where it ends.

    EXACT and rounded to float32 is what Python's `float` and then float32 would give. CLOSE (one in some ten million
    of long numbers) is so near the middle of two float32 that only exact arithmetic can tell: read it again in
    Python. NUMBER_INFINITE: `inf`, `nan`, or too large for float32.
    """
    i = start
    negative = text[i] == MINUS
    if negative or text[i] == PLUS:
        i += 1
    mantissa = np.uint64(0)
    exponent = 0
    cut = False
    first = i
    while True:
        digit = signed(text[i]) - ZERO
        if digit < 0 or digit > 9:
            break
        if mantissa < FULL_MANTISSA:
            mantissa = mantissa * np.uint64(10) + np.uint64(digit)
        else:
            exponent += 1
            cut = True
        i += 1
    num_digits = i - first
    if text[i] == POINT:
        i += 1
        first = i
        while True:
            digit = signed(text[i]) - ZERO
            if digit < 0 or digit > 9:
                break
            if mantissa < FULL_MANTISSA:
                mantissa = mantissa * np.uint64(10) + np.uint64(digit)
                exponent -= 1
            else:
                cut = True
            i += 1
        num_digits += i - first
    if num_digits == 0:
        return _read_not_finite(text, i)
    if text[i] | LOWER == LETTER_E:
        power, after = _read_exponent(text, i + 1)
        if after > 0:
            exponent += power
            i = after
    value, trust = _scale(mantissa, exponent, cut)
    return trust, -value if negative else value, i


@inlined
def read_short_number(text: Bytes, start: int) -> tuple[int, float, int]:
    """What `read_number` gives, faster for numbers like 1, 42 and 0.4828: words instead of a branch per digit."""
    if start + 2 * WORD_BYTES + 1 > text.size:
        return read_number(text, start)
    if text[start] == ONE and text[start + 1] <= SPACE:
        return EXACT, 1.0, start + 1
    word = load_word(text, start)
    count = count_digits(word)
    if count == 0 or count == WORD_BYTES:
        return read_number(text, start)
    whole = read_digits(word, count)
    i = start + count
    if text[i] == POINT:
        word = load_word(text, i + 1)
        count = count_digits(word)
        if count == 0 or count == WORD_BYTES:
            return read_number(text, start)
        i += 1 + count
        if text[i] | LOWER != LETTER_E:
            power = POWERS_OF_TEN[count]
            # Fifteen digits at most: both are exact, and one division rounds correctly.
            return EXACT, (np.float64(whole) * power + np.float64(read_digits(word, count))) / power, i
    elif text[i] | LOWER != LETTER_E:
        return EXACT, np.float64(whole), i
    return read_number(text, start)


@inlined
def _read_exponent(text: Bytes, start: int) -> tuple[int, int]:
    """The integer after an `e` and where it ends; 0 for where if there is none."""
    i = start
    negative = text[i] == MINUS
    if negative or text[i] == PLUS:
        i += 1
    first = i
    power = 0
    while True:
        digit = signed(text[i]) - ZERO
        if digit < 0 or digit > 9:
            break
        if power < 1_000_000_000_000:
            power = power * 10 + digit
        i += 1
    return -power if negative else power, i if i > first else 0


@inlined
def _read_not_finite(text: Bytes, i: int) -> tuple[int, float, int]:
    """Tell `inf`, `infinity` and `nan` from what is not a number at all."""
    if _is_word(text, i, INF):
        return NUMBER_INFINITE, np.inf, i + (INFINITY.size if _is_word(text, i, INFINITY) else INF.size)
    if _is_word(text, i, NAN):
        return NUMBER_INFINITE, np.nan, i + NAN.size
    return NUMBER_MISSING, 0.0, i


@inlined
def _is_word(text: Bytes, start: int, word: Bytes) -> bool:
    """Whether `word` stands at `start`, in any case. Looks no further than a newline."""
    k = 0
    while k < word.size and text[start + k] | LOWER == word[k]:
        k += 1
    return k == word.size


@inlined
def _scale(mantissa: Any, exponent: int, cut: bool) -> tuple[float, int]:
    """`mantissa` × 10**`exponent`, and how far to trust it once it is rounded to float32."""
    value = np.float64(mantissa)
    if mantissa <= EXACT_MANTISSA and not cut and -EXACT_POWER <= exponent <= EXACT_POWER:
        # Both factors are exact, so one multiplication or division rounds correctly.
        if exponent < 0:
            value /= POWERS_OF_TEN[-exponent]
        else:
            value *= POWERS_OF_TEN[exponent]
        return value, EXACT if value < FLOAT32_OVERFLOW else NUMBER_INFINITE
    if mantissa == 0 or exponent < -70:
        return 0.0, EXACT
    if exponent > 40:
        return np.inf, NUMBER_INFINITE
    if exponent < 0:
        value /= POWERS_OF_TEN[-exponent]
    else:
        value *= POWERS_OF_TEN[exponent]
    # Four roundings and the digits left out amount to less than DOUBT: where both ends of that interval round to
    # the same float32, so does the number itself.
    below, above = np.float32(value * (1 - DOUBT)), np.float32(value * (1 + DOUBT))
    if above == np.inf:
        return value, NUMBER_INFINITE
    return value, EXACT if below == above else CLOSE


@inlined
def skip_blanks(text: Bytes, start: int) -> int:
    """The first position from `start` that is not a space, tab or carriage return."""
    i = start
    while text[i] <= SPACE and (text[i] == SPACE or text[i] == TAB or text[i] == RETURN):
        i += 1
    return i


@inlined
def after_line(text: Bytes, start: int) -> int:
    """The position after the next newline."""
    i = start
    while text[i] != NEWLINE:
        i += 1
    return i + 1


@inlined
def label_problem(trust: int) -> int:
    """The problem with a label that `read_number` trusts this far; which numbers are labels is decided elsewhere."""
    if trust == NUMBER_MISSING:
        return LABEL_NO_NUMBER
    return LABEL_NOT_FINITE if trust == NUMBER_INFINITE else NONE
