"""How are LIBSVM lines read: `label [qid:n] key:value key:value … [# comment]`?"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.kernels import problems
from paceline.kernels.jit import compiled, inlined
from paceline.kernels.text import (
    CLOSE,
    COLON,
    EXACT,
    HASH,
    NEWLINE,
    NUMBER_INFINITE,
    SPACE,
    Bytes,
    Counts,
    add_digits,
    after_line,
    end_row,
    label_problem,
    note_bad,
    read_number,
    read_short_number,
    signed,
    skip_blanks,
)
from paceline.kernels.words import WORD_BYTES, count_digits, load_word, read_digits


@compiled
def parse_libsvm(text: Bytes, base: int, limit: int, room: Any, close: NDArray[np.int64]) -> Counts:
    """Parse lines into rows, each with its label and line. Index i, `base` <= i < `limit`, is key i - `base`.

    They go into the arrays of `room` (`data/sources/parsed.py`), which must be large enough. Rows that do not parse are
    left out and noted in `room.bad` as (line, problem, line start, place); when it is full the loop ends. Numbers that
    Python must read again are noted in `close` as (nonzero, start, stop); for the label of row r, `nonzero` is -1 - r.
    """
    i = line = rows = nonzeros = num_bad = num_close = 0
    room.offsets[0] = 0
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
        if problem == problems.NONE and not _ends(text[i]):
            problem = problems.LABEL_NO_NUMBER
        if trust == CLOSE:
            num_close = _note_close(close, num_close, -1 - rows, start, i)
        while problem == problems.NONE:
            start = i = skip_blanks(text, i)
            index, i = _read_index(text, i)
            if text[i] != COLON or i == start:
                if i == start and (text[i] == NEWLINE or text[i] == HASH):
                    break
                if i == start and text[i] == 113 and text[i + 1] == 105 and text[i + 2] == 100 and text[i + 3] == COLON:
                    while not _ends(text[i]):  # qid:
                        i += 1
                    continue
                problem = problems.KEY_NO_NUMBER
                break
            if index >= limit or i - start > 18:
                problem = problems.KEY_TOO_LARGE
                break
            if index < base:
                problem = problems.KEY_BELOW_BASE
                break
            i += 1
            value_start = i
            trust, number, i = read_short_number(text, i)
            if trust != EXACT:
                if trust == CLOSE:
                    num_close = _note_close(close, num_close, written, value_start, i)
                else:
                    problem = problems.NOT_FINITE if trust == NUMBER_INFINITE else problems.NO_NUMBER
                    break
            if not _ends(text[i]):
                problem = problems.NO_NUMBER
                break
            room.keys[written] = index - base
            room.values[written] = number
            written += 1
        if problem == problems.NONE:
            nonzeros = written
            rows = end_row(room, rows, label, line, nonzeros)
        else:
            num_bad = note_bad(room.bad, num_bad, line, problem, line_start, start)
            num_close = close_before
            if num_bad == room.bad.shape[0]:
                break
        i = after_line(text, i)
    return Counts(line, rows, nonzeros, num_bad, num_close)


@inlined
def _note_close(close: NDArray[np.int64], count: int, nonzero: int, start: int, stop: int) -> int:
    """Note a number to be read again after `count` others; returns how many there are now."""
    close[count, 0] = nonzero
    close[count, 1] = start
    close[count, 2] = stop
    return count + 1


@inlined
def _read_index(text: Bytes, start: int) -> tuple[int, int]:
    """The digits from `start` on as a number (of the first 18 digits), and where they end."""
    i = start
    index = np.uint64(0)
    if start + WORD_BYTES <= text.size:
        word = load_word(text, start)
        count = count_digits(word)
        if count == 0:
            return 0, start
        index = read_digits(word, count)
        i += count
        if count < WORD_BYTES:
            return signed(index), i
    index, i, _ = add_digits(text, i, index)
    return signed(index), i


@inlined
def _ends(byte: int) -> bool:
    """Whether a cell ends before this byte. Other control characters are noticed when the next cell is read."""
    return byte <= SPACE or byte == HASH
