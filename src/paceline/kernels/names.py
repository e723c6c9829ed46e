"""How are the texts of hashed keys noted while rows are parsed, and how are keys counted?

A thread that parses notes a key with its text the first time that it meets the key. One bit per key says which keys it
has met. As each thread takes chunks in their order, the first text of a key in the input is always among those noted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload
from numpy.typing import NDArray

from paceline.kernels.jit import STRICT, compiled, inlined, prefetch, prefetch_to_read
from paceline.kernels.keys import GOLDEN
from paceline.kernels.optional import is_missing
from paceline.kernels.text import Bytes
from paceline.kernels.words import copy_bytes

LONGEST_TEXT = 256  # bytes of a text that are kept
# A note is a word: the place of a key (its hash without the bits above the mask), the column, and the text's length.
COLUMN_SHIFT, LENGTH_SHIFT = np.uint64(32), np.uint64(48)
PLACE_BITS, COLUMN_BITS = np.uint64(0xFFFFFFFF), np.uint64(0xFFFF)

AHEAD = 16  # cells

Notes = NDArray[np.uint64]


class NameRoom(NamedTuple):
    """Where a thread notes texts: one bit for each key that it has `met`, the notes of this chunk, their `texts` one
    after the other, how many notes and bytes there are [2], and the texts of a row, which wait to be noted.

    """

    met: NDArray[np.uint64]
    notes: Notes
    texts: Bytes
    waiting: NDArray[np.uint64]
    counts: NDArray[np.int64]


def add_text(room: Any, waiting: int, place: Any, column: Any, start: Any, length: Any) -> int:
    """Let the text that begins at `start` wait behind `waiting` others. Returns how many wait now: no more if `room` is
    None. For compiled loops.

    Meanwhile the processor fetches the bit that says whether the key was met.
    """
    raise NotImplementedError


def note_texts(room: Any, waiting: int, text: Any) -> None:
    """Note those of the `waiting` texts whose keys were not met before, unless `room` is None. For compiled loops."""
    raise NotImplementedError


@overload(add_text, jit_options=STRICT)
def _compile_add_text(room, waiting, place, column, start, length):  # type: ignore[no-untyped-def]
    if is_missing(room):
        return lambda room, waiting, place, column, start, length: waiting

    def add(room, waiting, place, column, start, length):  # type: ignore[no-untyped-def]
        prefetch_to_read(room.met, np.int64(place >> np.uint64(6)))
        at = np.uint64(2) * np.uint64(waiting)
        room.waiting[at] = place | np.uint64(column) << COLUMN_SHIFT
        room.waiting[at + np.uint64(1)] = np.uint64(start) << np.uint64(32) | np.uint64(length)
        return waiting + 1

    return add


@overload(note_texts, jit_options=STRICT)
def _compile_note_texts(room, waiting, text):  # type: ignore[no-untyped-def]
    if is_missing(room):
        return lambda room, waiting, text: None

    def note_all(room, waiting, text):  # type: ignore[no-untyped-def]
        count, written = room.counts[0], room.counts[1]
        for i in range(waiting):
            at = np.uint64(2) * np.uint64(i)
            note, where = room.waiting[at], room.waiting[at + np.uint64(1)]
            if _is_new(room, note & PLACE_BITS):
                start, length = np.int64(where >> np.uint64(32)), np.int64(where & PLACE_BITS)
                written = _note(room, count, written, note, text, start, length)
                count += 1
        room.counts[0], room.counts[1] = count, written

    return note_all


@inlined
def _is_new(room: Any, place: Any) -> bool:
    """Whether a key is met for the first time."""
    word, bit = place >> np.uint64(6), np.uint64(1) << (place & np.uint64(63))
    is_new = room.met[word] & bit == 0
    if is_new:
        room.met[word] |= bit
    return is_new


@inlined
def _note(room: Any, count: int, written: int, note: Any, text: Any, start: int, length: int) -> int:
    """Write a note, whose length is not there yet, and its text. Returns how many bytes of texts there are now."""
    kept = min(length, LONGEST_TEXT)
    room.notes[count] = note | np.uint64(kept) << LENGTH_SHIFT
    copy_bytes(text, start, kept, room.texts, written)
    return written + kept


@compiled
def note_cells(keys: NDArray[Any], first_key: Any, mask: Any, column: int, text: Bytes, offsets: NDArray[Any],
               room: Any) -> None:  # fmt: skip
    """Note the cells of a text column, whose keys are `first_key` + place, or hashes with more bits than the `mask`.

    Blank cells have no key.
    """
    count, written = room.counts[0], room.counts[1]
    for i in range(keys.size):
        ahead = (np.uint64(keys[min(i + AHEAD, keys.size - 1)]) - np.uint64(first_key)) & np.uint64(mask)
        prefetch_to_read(room.met, np.int64(ahead >> np.uint64(6)))
        place = (np.uint64(keys[i]) - np.uint64(first_key)) & np.uint64(mask)
        start, length = np.int64(offsets[i]), np.int64(offsets[i + 1] - offsets[i])
        if length > 0 and _is_new(room, place):
            note = place | np.uint64(column) << COLUMN_SHIFT
            written = _note(room, count, written, note, text, start, length)
            count += 1
    room.counts[0], room.counts[1] = count, written


@compiled
def keep_new(notes: Notes, texts: Bytes, met: NDArray[np.uint64], first_key: int, kept: int, keys: NDArray[np.uint32],
             columns: NDArray[np.uint16], ends: NDArray[np.int32], all_texts: Bytes) -> int:  # fmt: skip
    """Append the notes whose keys were met in no earlier chunk to the `kept` ones: their keys, columns and texts, and
    where these end. Returns how many are kept now.

    `ends[i]` is where text i begins, and `all_texts` continues for a word after the last. Keys of notes are met now.
    """
    start, written = 0, np.int64(ends[kept])
    for i in range(notes.shape[0]):
        prefetch(met, np.int64((notes[min(i + AHEAD, notes.shape[0] - 1)] & PLACE_BITS) >> np.uint64(6)))
        note = notes[i]
        length = np.int64(note >> LENGTH_SHIFT)
        place = note & PLACE_BITS
        word, bit = place >> np.uint64(6), np.uint64(1) << (place & np.uint64(63))
        if met[word] & bit == 0:
            met[word] |= bit
            copy_bytes(texts, start, length, all_texts, written)
            written += length
            keys[kept] = place + np.uint64(first_key)
            columns[kept] = note >> COLUMN_SHIFT & COLUMN_BITS
            kept += 1
            ends[kept] = written
        start += length
    return kept


@compiled
def mark_keys(keys: NDArray[Any], marked: NDArray[np.uint64]) -> int:
    """Mark keys, one bit each, and return how many were not marked yet."""
    new = 0
    for i in range(keys.size):
        key = np.uint64(keys[i])
        word, bit = np.int64(key >> np.uint64(6)), np.uint64(1) << (key & np.uint64(63))
        if marked[word] & bit == 0:
            marked[word] |= bit
            new += 1
    return new


@compiled
def count_keys(keys: NDArray[Any], counts: NDArray[np.uint32]) -> None:
    """`counts[key]` grows by one for each key."""
    for i in range(keys.size):
        prefetch(counts, np.int64(keys[min(i + AHEAD, keys.size - 1)]))
        counts[np.uint64(keys[i])] += np.uint32(1)


@compiled
def count_listed(keys: NDArray[Any], dictionary: NDArray[np.uint64], counts: NDArray[np.int64]) -> None:
    """`counts[n]` grows by one for each of `keys` that the `dictionary` (`keys.fill_dictionary`) enters with n."""
    mask = np.uint64(dictionary.shape[0] - 1)
    for i in range(keys.size):
        key = np.uint64(keys[i])
        slot = ((key * GOLDEN) >> np.uint64(32)) & mask
        while dictionary[slot, 0] != 0:
            if dictionary[slot, 0] == key + np.uint64(1):
                counts[dictionary[slot, 1]] += 1
                break
            slot = (slot + np.uint64(1)) & mask
