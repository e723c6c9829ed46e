"""How are LIBSVM lines read: `label [qid:n] key:value key:value … [# comment]`?"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.jit import compiled, inlined
from paceline.kernels.text import (
    CLOSE,
    COLON,
    EXACT,
    HASH,
    NEWLINE,
    NONE,
    NUMBER_INFINITE,
    SPACE,
    ZERO,
    Bytes,
    Counts,
    Problem,
    after_line,
    label_problem,
    read_number,
    read_short_number,
    signed,
    skip_blanks,
)
from paceline.kernels.words import WORD_BYTES, count_digits, load_word, read_digits

NO_NUMBER, NOT_FINITE = int(Problem.NO_NUMBER), int(Problem.NOT_FINITE)
LABEL_NO_NUMBER = int(Problem.LABEL_NO_NUMBER)
KEY_NO_NUMBER, KEY_BELOW_BASE = int(Problem.KEY_NO_NUMBER), int(Problem.KEY_BELOW_BASE)
KEY_TOO_LARGE = int(Problem.KEY_TOO_LARGE)


@compiled
def parse_libsvm(
    text: Bytes,
    base: int,
    limit: int,
    labels: NDArray[np.float32],
    lines: NDArray[np.int64],
    offsets: NDArray[np.int64],
    keys: NDArray[Any],
    values: NDArray[np.float32],
    bad: NDArray[np.int64],
    close: NDArray[np.int64],
) -> Counts:
    """Parse lines into rows, each with its label and line. Index i, `base` <= i < `limit`, is key i - `base`.

    Rows that do not parse are left out and noted in `bad` as (line, problem, line start, place); when it is full the
    loop ends. Numbers that Python must read again are noted in `close` as (nonzero, start, stop); for the label of row
    r, `nonzero` is -1 - r. The arrays must be large enough.
    """
    i = line = rows = nonzeros = num_bad = num_close = 0
    offsets[0] = 0
    while i < text.size:
        line += 1
        line_start = i
        start = i = skip_blanks(text, i)
        if text[i] == NEWLINE:
            i += 1
            continue
        if text[i] == HASH:
            i = after_line(text, i)
            continue
        written, close_before = nonzeros, num_close
        trust, label, i = read_number(text, i)
        problem = label_problem(trust)
        if problem == NONE and not _ends(text[i]):
            problem = LABEL_NO_NUMBER
        if trust == CLOSE:
            close[num_close, 0] = -1 - rows
            close[num_close, 1] = start
            close[num_close, 2] = i
            num_close += 1
        while problem == NONE:
            start = i = skip_blanks(text, i)
            index, i = _read_index(text, i)
            if text[i] != COLON or i == start:
                if i == start and (text[i] == NEWLINE or text[i] == HASH):
                    break
                if i == start and text[i] == 113 and text[i + 1] == 105 and text[i + 2] == 100 and text[i + 3] == COLON:
                    while not _ends(text[i]):  # qid:
                        i += 1
                    continue
                problem = KEY_NO_NUMBER
                break
            if index >= limit or i - start > 18:
                problem = KEY_TOO_LARGE
                break
            if index < base:
                problem = KEY_BELOW_BASE
                break
            i += 1
            value_start = i
            trust, number, i = read_short_number(text, i)
            if trust != EXACT:
                if trust == CLOSE:
                    close[num_close, 0] = written
                    close[num_close, 1] = value_start
                    close[num_close, 2] = i
                    num_close += 1
                else:
                    problem = NOT_FINITE if trust == NUMBER_INFINITE else NO_NUMBER
                    break
            if not _ends(text[i]):
                problem = NO_NUMBER
                break
            keys[written] = index - base
            values[written] = number
            written += 1
        if problem == NONE:
            labels[rows] = label
            lines[rows] = line
            rows += 1
            nonzeros = written
            offsets[rows] = nonzeros
        else:
            bad[num_bad, 0] = line
            bad[num_bad, 1] = problem
            bad[num_bad, 2] = line_start
            bad[num_bad, 3] = start
            num_bad += 1
            num_close = close_before
            if num_bad == bad.shape[0]:
                break
        i = after_line(text, i)
    return Counts(line, rows, nonzeros, num_bad, num_close)


@inlined
def _read_index(text: Bytes, start: int) -> tuple[int, int]:
    """The digits from `start` on as a number (of the first 18 digits), and where they end."""
    i = start
    index = signed(0)
    if start + WORD_BYTES <= text.size:
        word = load_word(text, start)
        count = count_digits(word)
        if count == 0:
            return 0, start
        index = signed(read_digits(word, count))
        i += count
        if count < WORD_BYTES:
            return index, i
    while True:
        digit = signed(text[i]) - ZERO
        if digit < 0 or digit > 9:
            return index, i
        index = index * 10 + digit
        i += 1


@inlined
def _ends(byte: int) -> bool:
    """Whether a cell ends before this byte. Other control characters are noticed when the next cell is read."""
    return byte <= SPACE or byte == HASH
