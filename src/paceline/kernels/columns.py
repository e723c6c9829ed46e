"""How do columns of cells become rows of keys and values?

The cells of a text column lie one after the other: cell i is `text[offsets[i]:offsets[i + 1]]`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.hashing import FNV_PRIME, hash_text, mix
from paceline.kernels.jit import compiled
from paceline.kernels.text import NEWLINE, NUMBER_MISSING, QUOTE, RETURN, Bytes, read_number

BLANK = 4  # beside EXACT, CLOSE, NUMBER_MISSING and NUMBER_INFINITE
LONGEST_NUMBER = 400

# What `check_quotes` says of a line.
QUOTE_OPEN, TEXT_AFTER_QUOTE, LONE_RETURN = 1, 2, 3


@compiled
def check_quotes(text: Bytes, separator: int, problems: NDArray[np.uint8]) -> None:
    """`problems[i]` becomes why line i cannot be split into cells: an open quote, text after a quote, a lone \\r, or 0.

    A quote opens where a cell begins, and two of them within quotes stand for one. The text ends with a newline.
    """
    line = problem = 0
    at_start, quoted, closed = True, False, False
    i = 0
    while i < text.size:
        byte = text[i]
        i += 1
        if byte == NEWLINE:
            problems[line] = QUOTE_OPEN if quoted else problem
            line += 1
            problem = 0
            at_start, quoted, closed = True, False, False
        elif byte == RETURN:
            if text[i] != NEWLINE:
                problem = LONE_RETURN
        elif quoted:
            if byte == QUOTE:
                if text[i] == QUOTE:
                    i += 1
                else:
                    quoted, closed = False, True
        elif byte == separator:
            at_start, closed = True, False
        elif closed:
            problem = TEXT_AFTER_QUOTE
        else:
            quoted = at_start and byte == QUOTE
            at_start = False


@compiled
def read_cells(
    text: Bytes, offsets: NDArray[Any], numbers: NDArray[np.float64], trusts: NDArray[np.uint8], cell: Bytes
) -> None:
    """Read each cell as a number: its value, and how far to trust it, as `read_number` says, or BLANK.

    `cell` is scratch of LONGEST_NUMBER + 1 bytes.
    """
    for i in range(offsets.size - 1):
        start, stop = offsets[i], offsets[i + 1]
        while start < stop and text[start] == 32:
            start += 1
        while start < stop and text[stop - 1] == 32:
            stop -= 1
        numbers[i] = 0
        length = stop - start
        if length == 0:
            trusts[i] = BLANK
            continue
        if length > LONGEST_NUMBER:
            trusts[i] = NUMBER_MISSING
            continue
        # A copy, because reading needs a byte after the cell that ends the number.
        for k in range(length):
            cell[k] = text[start + k]
        cell[length] = NEWLINE
        trust, number, end = read_number(cell, 0)
        if end != length:
            trust = NUMBER_MISSING
        trusts[i] = trust
        numbers[i] = number


@compiled
def hash_cells(text: Bytes, offsets: NDArray[Any], salt: Any, mask: Any, first_key: Any, keys: NDArray[Any]) -> None:
    """`keys[i]` becomes the key of cell i: `first_key` + (its hash & `mask`)."""
    for i in range(offsets.size - 1):
        hashed = hash_text(salt, text, offsets[i], offsets[i + 1])
        keys[i] = np.uint64(first_key) + (hashed & np.uint64(mask))


@compiled
def cross_cells(hashes: NDArray[np.uint64], mask: Any, first_key: Any, keys: NDArray[Any]) -> None:
    """`keys[i]` becomes the key of a cross of cells, one per column: `hashes[j, i]` is that of the cell in column j.

    The hash of a cross begins with that of the first cell. For each further cell, it is multiplied by the prime of
    FNV-1a, combined with the hash of that cell (exclusive or), and mixed as the hash of a cell is.
    """
    for i in range(keys.size):
        state = hashes[0, i]
        for j in range(1, hashes.shape[0]):
            state = mix((state * FNV_PRIME) ^ hashes[j, i])
        keys[i] = np.uint64(first_key) + (state & np.uint64(mask))
