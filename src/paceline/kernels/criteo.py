"""How are Criteo lines read: `[id] label I1 … I13 C1 … C26`, blanks for what is missing?

Lines are parsed in one pass that leaves the integers as they are, keys 0 to 12; a second pass over the nonzeros puts
them on a log scale or into buckets.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.kernels import problems
from paceline.kernels.hashing import FNV_PRIME, mix
from paceline.kernels.jit import compiled, inlined
from paceline.kernels.names import add_text, note_texts
from paceline.kernels.optional import put
from paceline.kernels.text import (
    NEWLINE,
    NUMBER_INFINITE,
    NUMBER_MISSING,
    RETURN,
    ZERO,
    Bytes,
    Counts,
    after_line,
    end_row,
    label_problem,
    note_bad,
    read_short_number,
)

INTEGERS, STRINGS = 13, 26
LETTER_B, MINUS = 98, 45
LOG_SCALE = 0.3
SMALL_LOGS = (LOG_SCALE * np.log1p(np.arange(4096.0))).astype(np.float32)


@compiled
def parse_criteo(text: Bytes, separator: int, before_label: int, integer_salts: NDArray[np.uint64],
                 string_salts: NDArray[np.uint64], mask: Any, room: Any, labelled: bool) -> Counts:  # fmt: skip
    """Parse lines into rows, each with its label and line: integer j is key j with its value, string j of hash h is
    key 13 + (h & `mask`) with 1.

    A blank integer is the empty string of its column, a blank string is absent. `before_label` columns come before
    the label, or before the integers if rows are not `labelled`; the salts are those of I1 to I13 and C1 to C26. Rows
    go into the arrays of `room` (`data/sources/parsed.py`); if it has fields, each column is one, and if it has names,
    the texts of hashed keys are noted there, with I1 to C26 as columns 0 to 38. Rows that do not parse are left out and
    noted in `room.bad` as (line, problem, line start, place); when it is full the loop ends.
    """
    i = line = rows = nonzeros = num_bad = 0
    mask = np.uint64(mask)
    room.offsets[0] = 0
    while i < text.size:
        line += 1
        line_start = i
        if text[i] == NEWLINE or (text[i] == RETURN and text[i + 1] == NEWLINE):
            i = after_line(text, i)
            continue
        written, waiting = nonzeros, 0
        problem, start, label, i = _read_label(text, i, separator, before_label, labelled)
        if problem == problems.NONE:
            problem, start, i, written, waiting = _read_integers(text, i, separator, integer_salts, mask, room, written)
        if problem == problems.NONE:
            problem, start, i, written, waiting = _read_strings(
                text, i, separator, string_salts, mask, room, written, waiting
            )
        if problem == problems.NONE and text[i] == RETURN:
            i += 1
        if problem == problems.NONE and text[i] != NEWLINE:
            problem = problems.TOO_MANY_FIELDS
            start = i
        if problem == problems.NONE:
            nonzeros = written
            note_texts(room.names, waiting, text)
            rows = end_row(room, rows, label, line, nonzeros)
        else:
            num_bad = note_bad(room.bad, num_bad, line, problem, line_start, start)
            if num_bad == room.bad.shape[0]:
                break
        i = after_line(text, i)
    return Counts(line, rows, nonzeros, num_bad, 0)


@inlined
def _read_label(text: Bytes, i: int, separator: int, before_label: int, labelled: bool) -> tuple[int, int, float, int]:
    """The label after `before_label` columns: its problem, where that is, the number, and where the integers begin."""
    start = i
    for _ in range(before_label):
        while text[i] != separator and text[i] != NEWLINE:
            i += 1
        if text[i] == NEWLINE:
            return problems.TOO_FEW_FIELDS, start, 0.0, i
        i += 1
    start = i
    if not labelled:
        return problems.NONE, start, 0.0, i
    trust, label, i = read_short_number(text, i)
    problem = label_problem(trust)
    if problem == problems.NONE and text[i] != separator:
        problem = problems.TOO_FEW_FIELDS if text[i] == NEWLINE or text[i] == RETURN else problems.LABEL_NO_NUMBER
    if problem == problems.NONE:
        i += 1
    return problem, start, label, i


@inlined
def _read_integers(text: Bytes, i: int, separator: int, salts: NDArray[np.uint64], mask: Any, room: Any,
                   written: int) -> tuple[int, int, int, int, int]:  # fmt: skip
    """The integers from `i` on: the first problem, where it is, the place after them, how many nonzeros there are now,
    and how many texts wait to be noted.
    """
    waiting = 0
    for field in range(INTEGERS):
        if field > 0:
            if text[i] != separator:
                return problems.TOO_FEW_FIELDS, i, i, written, waiting
            i += 1
        start = i
        if text[i] == separator:
            place = mix(salts[field]) & mask
            waiting = add_text(room.names, waiting, place, field, i, 0)
            room.keys[written] = np.uint64(INTEGERS) + place
            room.values[written] = 1
            put(room.fields, written, field)
            written += 1
            continue
        trust, number, i = read_short_number(text, i)
        if trust == NUMBER_INFINITE:
            return problems.NOT_FINITE, start, i, written, waiting
        if text[i] in (NEWLINE, RETURN):
            return problems.TOO_FEW_FIELDS, start, i, written, waiting
        if trust == NUMBER_MISSING or text[i] != separator:
            return problems.NO_NUMBER, start, i, written, waiting
        room.keys[written] = field
        room.values[written] = number
        put(room.fields, written, field)
        written += 1
    return problems.NONE, i, i, written, waiting


@inlined
def _read_strings(text: Bytes, i: int, separator: int, salts: NDArray[np.uint64], mask: Any, room: Any,
                  written: int, waiting: int) -> tuple[int, int, int, int, int]:  # fmt: skip
    """The same for the strings, each after a separator."""
    for field in range(STRINGS):
        if text[i] != separator:
            return problems.TOO_FEW_FIELDS, i, i, written, waiting
        start = i = i + 1
        state = salts[field]
        byte = text[i]
        while byte != separator and byte != NEWLINE and byte != RETURN:
            state = (state ^ np.uint64(byte)) * FNV_PRIME
            i += 1
            byte = text[i]
        if i > start:
            place = mix(state) & mask
            waiting = add_text(room.names, waiting, place, INTEGERS + field, start, i - start)
            room.keys[written] = np.uint64(INTEGERS) + place
            room.values[written] = 1
            put(room.fields, written, INTEGERS + field)
            written += 1
    return problems.NONE, i, i, written, waiting


@compiled
def scale_integers(keys: NDArray[Any], values: NDArray[np.float32]) -> None:
    """Put the integers x (keys 0 to 12) on a log scale, in place: 0.3 · log(1 + x), and for x < 0 its mirror image."""
    for k in range(keys.size):
        if keys[k] < INTEGERS:
            value = values[k]
            if value >= 0 and value < SMALL_LOGS.size and value == np.floor(value):
                values[k] = SMALL_LOGS[np.int64(value)]
            elif value >= 0:
                values[k] = LOG_SCALE * np.log1p(np.float64(value))
            else:
                values[k] = -LOG_SCALE * np.log1p(-np.float64(value))


@compiled
def bucket_integers(keys: NDArray[Any], values: NDArray[np.float32], salts: NDArray[np.uint64], mask: Any,
                    spelled: Bytes, names: Any) -> None:  # fmt: skip
    """Make the integers (keys 0 to 12) strings and hash them with the `salts` of I1 to I13; all keys move down by 13.

    x > 2 becomes `b` and floor(log(x)²) in decimal, a smaller x the integer at or below it. Keys met for the first time
    are noted in `names`, if that is not None. `spelled` is scratch of 32 bytes.
    """
    mask = np.uint64(mask)
    for k in range(keys.size):
        key = np.uint64(keys[k])
        if key >= np.uint64(INTEGERS):
            keys[k] = key - np.uint64(INTEGERS)
            continue
        value = np.float64(values[k])
        length = 0
        if value > 2:
            spelled[0] = LETTER_B
            length = 1
            bucket = np.int64(np.log(value) ** 2)
        else:
            bucket = np.int64(np.floor(max(value, -1e9)))
        if bucket < 0:
            spelled[0] = MINUS
            length = 1
            bucket = -bucket
        power = 1
        while bucket // power >= 10:
            power *= 10
        while power > 0:
            spelled[length] = ZERO + bucket // power % 10
            length += 1
            power //= 10
        state = salts[key]
        for i in range(length):
            state = (state ^ np.uint64(spelled[i])) * FNV_PRIME
        place = mix(state) & mask
        note_texts(names, add_text(names, 0, place, key, 0, length), spelled)
        keys[k] = place
        values[k] = 1
