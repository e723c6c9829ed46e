"""How are numbers read from the bytes of a text file?

The text is a uint8 array whose last byte is a newline, so that no loop over a line needs to look at the size. A row
that does not parse raises nothing here: its line, what is wrong (`problems.py`) and where are noted in an array, and
the next line is read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.kernels import problems
from paceline.kernels.jit import inlined
from paceline.kernels.words import WORD_BYTES, count_digits, load_word, read_digits

Bytes = NDArray[np.uint8]

signed: Any = np.int64  # a plain integer to type checkers, which np.int64 is not

TAB, NEWLINE, RETURN, SPACE, HASH, QUOTE = 9, 10, 13, 32, 35, 34
PLUS, MINUS, POINT, ZERO, ONE, COLON = 43, 45, 46, 48, 49, 58
LETTER_E = 101
INF, INFINITY, NAN = (np.frombuffer(word, np.uint8) for word in (b"inf", b"infinity", b"nan"))
LOWER = 32  # the bit that makes an ASCII letter lower-case


class Counts(NamedTuple):
    """How much a kernel read and wrote; `close` numbers must be read again in Python."""

    lines: int
    rows: int
    nonzeros: int
    bad: int
    close: int


# How far to trust what `read_number` found.
EXACT, CLOSE, NUMBER_MISSING, NUMBER_INFINITE = 0, 1, 2, 3

POWERS_OF_TEN = np.array([float(f"1e{power}") for power in range(80)])
EXACT_MANTISSA = np.uint64(1 << 53)
EXACT_POWER = 22  # 10**22 is the largest power of ten that a double holds exactly
LARGEST_POWER = np.uint64(10**12)  # more than enough to be infinite, or 0
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
    first = i
    mantissa, i, exponent = add_digits(text, first, np.uint64(0))
    num_digits = i - first
    cut = exponent > 0
    if text[i] == POINT:
        first = i + 1
        mantissa, i, dropped = add_digits(text, first, mantissa)
        num_digits += i - first
        exponent -= i - first - dropped
        cut |= dropped > 0
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
def add_digits(text: Bytes, start: int, number: Any) -> tuple[Any, int, int]:
    """`number` (uint64) followed by the digits from `start` on, where these end, and how many of them did not fit."""
    i = start
    dropped = 0
    while True:
        digit = signed(text[i]) - ZERO
        if digit < 0 or digit > 9:
            return number, i, dropped
        if number < FULL_MANTISSA:
            number = number * np.uint64(10) + np.uint64(digit)
        else:
            dropped += 1
        i += 1


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
    digits, after, _ = add_digits(text, i, np.uint64(0))
    power = signed(min(digits, LARGEST_POWER))
    return -power if negative else power, after if after > i else 0


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
    """Whether `word` is at `start`, in any case. Looks no further than a newline."""
    k = 0
    while k < word.size and text[start + k] | LOWER == word[k]:
        k += 1
    return k == word.size


@inlined
def _scale(mantissa: Any, exponent: int, cut: bool) -> tuple[float, int]:
    """`mantissa` × 10**`exponent`, and how far to trust it once it is rounded to float32."""
    value = np.float64(mantissa)
    exact = mantissa <= EXACT_MANTISSA and not cut and -EXACT_POWER <= exponent <= EXACT_POWER
    if not exact and (mantissa == 0 or exponent < -70):
        return 0.0, EXACT
    if not exact and exponent > 40:
        return np.inf, NUMBER_INFINITE
    if exponent < 0:
        value /= POWERS_OF_TEN[-exponent]
    else:
        value *= POWERS_OF_TEN[exponent]
    if exact:  # both factors are, so one multiplication or division rounds correctly
        return value, EXACT if value < FLOAT32_OVERFLOW else NUMBER_INFINITE
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
        return problems.LABEL_NO_NUMBER
    return problems.LABEL_NOT_FINITE if trust == NUMBER_INFINITE else problems.NONE


@inlined
def end_row(room: Any, rows: int, label: float, line: int, nonzeros: int) -> int:
    """Complete a row of `room`, whose keys and values end at `nonzeros`; returns how many rows there are now."""
    room.labels[rows] = label
    room.lines[rows] = line
    room.offsets[rows + 1] = nonzeros
    return rows + 1


@inlined
def note_bad(bad: NDArray[np.int64], count: int, line: int, problem: int, line_start: int, place: int) -> int:
    """Note a row that does not parse after `count` others; returns how many there are now."""
    bad[count, 0] = line
    bad[count, 1] = problem
    bad[count, 2] = line_start
    bad[count, 3] = place
    return count + 1
