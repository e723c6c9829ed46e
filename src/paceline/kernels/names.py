"""How are the texts of hashed keys noted while rows are parsed, and how are keys counted?

A thread that parses notes a key with its text the first time that it meets the key. One bit per key says which keys it
has met. As each thread takes chunks in their order, the first text of a key in the input is always among those noted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload
from numpy.typing import NDArray

from paceline.kernels.jit import STRICT, compiled, inlined
from paceline.kernels.keys import GOLDEN
from paceline.kernels.optional import is_missing
from paceline.kernels.text import Bytes

# The columns of a note. Places are those of hashed keys: the hash without the bits above the mask.
PLACE, COLUMN, START, LENGTH = range(4)
# Lengths of buckets, whose text is spelled out later; START is the bucket then.
SMALL_BUCKET, LARGE_BUCKET = 0xFFFFFFFF, 0xFFFFFFFE

Notes = NDArray[np.uint32]


class NameRoom(NamedTuple):
    """Where a thread notes texts: one bit for each key that it has `met`, the notes of this chunk, and how many [1].

    `merged` has the bits of all keys in chunks that were merged. These come before any chunk that is still parsed, so
    other threads may set bits there meanwhile.
    """

    met: NDArray[np.uint64]
    merged: NDArray[np.uint64]
    notes: Notes
    count: NDArray[np.int64]


def note_name(room: Any, place: Any, column: Any, start: Any, length: Any) -> None:
    """Note the text of a key unless it was met before; nothing if `room` is None. For compiled loops."""
    raise NotImplementedError


@overload(note_name, jit_options=STRICT)
def _compile_note_name(room, place, column, start, length):  # type: ignore[no-untyped-def]
    if is_missing(room):
        return lambda room, place, column, start, length: None

    def note_one(room, place, column, start, length):  # type: ignore[no-untyped-def]
        word = np.int64(place >> np.uint64(6))
        bit = np.uint64(1) << (place & np.uint64(63))
        if room.met[word] & bit == 0:
            room.met[word] |= bit
            if room.merged[word] & bit == 0:
                at = room.count[0]
                room.notes[at, PLACE] = place
                room.notes[at, COLUMN] = column
                room.notes[at, START] = start
                room.notes[at, LENGTH] = length
                room.count[0] = at + 1

    return note_one


@compiled
def note_cells(keys: NDArray[Any], first_key: Any, mask: Any, column: int, offsets: NDArray[Any], room: Any) -> None:
    """Note the cells of a text column, whose keys are `first_key` + place, or hashes with more bits than the `mask`.

    Blank cells have no key.
    """
    for i in range(keys.size):
        if offsets[i + 1] > offsets[i]:
            place = (np.uint64(keys[i]) - np.uint64(first_key)) & np.uint64(mask)
            note_name(room, place, column, offsets[i], offsets[i + 1] - offsets[i])


@compiled
def pack_texts(notes: Notes, text: Bytes, longest: int, packed: Bytes) -> int:
    """Copy the noted texts one after the other, at most the first `longest` bytes of each, and return their bytes.

    Notes then say where their texts are in `packed`.
    """
    written = 0
    for i in range(notes.shape[0]):
        start, length = np.int64(notes[i, START]), np.int64(notes[i, LENGTH])
        length = min(length, np.int64(longest))
        for k in range(length):
            packed[written + k] = text[start + k]
        notes[i, START] = written
        notes[i, LENGTH] = length
        written += length
    return written


@compiled
def keep_new(notes: Notes, packed: Bytes, met: NDArray[np.uint64]) -> tuple[int, int]:
    """Drop the notes whose keys were met in earlier chunks, in place: the number of notes and of bytes that are left.

    The keys of those that are left are met now.
    """
    kept = written = 0
    for i in range(notes.shape[0]):
        place = np.uint64(notes[i, PLACE])
        word, bit = np.int64(place >> np.uint64(6)), np.uint64(1) << (place & np.uint64(63))
        if met[word] & bit == 0:
            met[word] |= bit
            start, length = np.int64(notes[i, START]), np.int64(notes[i, LENGTH])
            for k in range(length):
                packed[written + k] = packed[start + k]
            notes[kept, PLACE] = place
            notes[kept, COLUMN] = notes[i, COLUMN]
            notes[kept, START] = written
            notes[kept, LENGTH] = length
            written += length
            kept += 1
    return kept, written


@inlined
def _count_bits(word: Any) -> Any:
    """How many bits of 64 are set."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (word * np.uint64(0x0101010101010101)) >> np.uint64(56)


@compiled
def count_before(met: NDArray[np.uint64], before: NDArray[np.int64]) -> None:
    """`before[i]` becomes the number of bits that are set in the words before word i; it has one entry more."""
    before[0] = 0
    for i in range(met.size):
        before[i + 1] = before[i] + np.int64(_count_bits(met[i]))


@compiled
def rank_notes(notes: Notes, met: NDArray[np.uint64], before: NDArray[np.int64], first_key: int, keys: Notes,
               columns: NDArray[np.uint16], ends: NDArray[np.int32]) -> None:  # fmt: skip
    """Put the keys, columns and lengths of notes where they are among all `met` keys in order.

    COLUMN then says which place that is.
    """
    for i in range(notes.shape[0]):
        place = np.uint64(notes[i, PLACE])
        word, bit = np.int64(place >> np.uint64(6)), np.uint64(1) << (place & np.uint64(63))
        rank = before[word] + np.int64(_count_bits(met[word] & (bit - np.uint64(1))))
        keys[rank] = place + np.uint64(first_key)
        columns[rank] = notes[i, COLUMN]
        ends[rank + 1] = notes[i, LENGTH]
        notes[i, COLUMN] = rank


@compiled
def lay_out_texts(notes: Notes, packed: Bytes, ends: NDArray[np.int32], texts: Bytes) -> None:
    """Copy the texts of ranked notes to their places: text r begins at `ends[r]`."""
    for i in range(notes.shape[0]):
        start, to = np.int64(notes[i, START]), np.int64(ends[notes[i, COLUMN]])
        for k in range(np.int64(notes[i, LENGTH])):
            texts[to + k] = packed[start + k]


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
