"""How are LIBSVM lines read: `label[:weight] [qid:n] key:value key:value … [# comment]`?

In libffm's, each nonzero is `field:key:value`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import overload
from numpy.typing import NDArray

from paceline.kernels import problems
from paceline.kernels.jit import STRICT, compiled, inlined
from paceline.kernels.optional import MOST_FIELDS, is_missing, put
from paceline.kernels.text import (
    CLOSE,
    COLON,
    EXACT,
    HASH,
    NEWLINE,
    NUMBER_INFINITE,
    NUMBER_MISSING,
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
def parse_libsvm(
    text: Bytes, base: int, limit: int, room: Any, close: NDArray[np.int64], labelled: bool
) -> Counts:  # fmt: skip
    """Parse lines into rows, each with its label and line. Index i, `base` <= i < `limit`, is key i - `base`.

    If rows are not `labelled`, they begin with a nonzero, and labels are 0. If `room` has weights, labels may be
    followed by one (1 where it is missing), and if it has fields, each nonzero begins with its field; otherwise such
    rows do not parse.

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
        problem, label, weight = problems.NONE, 0.0, 1.0
        if labelled:
            trust, label, label_end = read_number(text, i)
            i = label_end
            problem = label_problem(trust)
            weight_problem, weight, i = _read_weight(text, i, room.weights)
            if problem == problems.NONE:
                problem = weight_problem
            if problem == problems.NONE and not _ends(text[i]):
                problem = problems.LABEL_NO_NUMBER
            if trust == CLOSE:
                num_close = _note_close(close, num_close, -1 - rows, start, label_end)
        while problem == problems.NONE:
            start = i = skip_blanks(text, i)
            problem, field, i = _read_field(text, i, room.fields)
            if problem != problems.NONE:
                break
            key_start = i
            index, i = _read_index(text, i)
            if text[i] != COLON or i == key_start:
                if i == start and (text[i] == NEWLINE or text[i] == HASH):
                    break
                if i == start and text[i] == 113 and text[i + 1] == 105 and text[i + 2] == 100 and text[i + 3] == COLON:
                    while not _ends(text[i]):  # qid:
                        i += 1
                    continue
                problem = problems.KEY_NO_NUMBER
                break
            if index >= limit or i - key_start > 18:
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
            put(room.fields, written, field)
            written += 1
        if problem == problems.NONE:
            nonzeros = written
            put(room.weights, rows, weight)
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


def _read_weight(text: Any, i: Any, weights: Any) -> Any:
    """The weight that follows a label which ends at `i`: its problem, the number, and where it ends.

    It is rounded like other numbers, except where only exact arithmetic could tell: the last bit of a weight changes
    nothing.
    """
    raise NotImplementedError


@overload(_read_weight, jit_options=STRICT)
def _compile_read_weight(text, i, weights):  # type: ignore[no-untyped-def]
    if is_missing(weights):
        return lambda text, i, weights: (problems.NONE, 1.0, i)

    def read_weight(text, i, weights):  # type: ignore[no-untyped-def]
        if text[i] != COLON:
            return problems.NONE, 1.0, i
        trust, weight, end = read_number(text, i + 1)
        if trust == NUMBER_MISSING or not _ends(text[end]):
            return problems.WEIGHT_NO_NUMBER, weight, end
        if trust == NUMBER_INFINITE:
            return problems.WEIGHT_NOT_FINITE, weight, end
        return problems.WEIGHT_NEGATIVE if weight < 0 else problems.NONE, weight, end

    return read_weight


def _read_field(text: Any, i: Any, fields: Any) -> Any:
    """The field with which a nonzero begins at `i`: its problem, its number, and where the key begins."""
    raise NotImplementedError


@overload(_read_field, jit_options=STRICT)
def _compile_read_field(text, i, fields):  # type: ignore[no-untyped-def]
    if is_missing(fields):
        return lambda text, i, fields: (problems.NONE, 0, i)

    def read_field(text, i, fields):  # type: ignore[no-untyped-def]
        field, end = _read_index(text, i)
        if end == i:
            return problems.NONE, 0, i
        if text[end] != COLON:
            return problems.KEY_NO_NUMBER, 0, end
        if field >= MOST_FIELDS or end - i > 18:
            return problems.FIELD_TOO_LARGE, 0, end
        return problems.NONE, field, end + 1

    return read_field
