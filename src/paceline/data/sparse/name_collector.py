"""How does `prepare` collect the names of hashed keys?

Threads that parse note the first text of each key (`kernels/names.py`), and the thread that takes chunks in their order
merges the notes. `names.arrow` beside the blocks lists the texts in the order in which they were found. A key that
stands for several texts is called by the first of them in the input.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from paceline.data.sparse.names import MOST_BYTES, NOTE_BYTES, SCHEMA, NamesInfo, write_names
from paceline.kernels.names import LENGTH_SHIFT, LONGEST_TEXT, NameRoom, Notes, keep_new, note_cells
from paceline.kernels.words import WORD_BYTES

MOST_SHARED = 1 << 24  # hashed keys, up to which threads that parse skip the keys that others have found
MOST_BITS = 28  # hashed keys beyond 2 to this power: no names, as every thread that parses has one bit per key


class FoundTexts(NamedTuple):
    """The texts of keys that a thread met for the first time in a chunk, one after the other."""

    notes: Notes
    texts: NDArray[np.uint8]


class NameCollector:
    """Collects the names of hashed keys, `first_key` + place, place below 2**hash_bits, from threads that parse.

    `columns` are the columns that are hashed, by the numbers that notes give them: 65,536 at most.
    """

    def __init__(self, columns: Sequence[str], hash_bits: int, first_key: int) -> None:
        self.columns = tuple(columns)
        self.first_key = first_key
        self._places = 1 << hash_bits
        self._met = self._no_bits() if hash_bits <= MOST_BITS else None
        self._rooms = threading.local()
        self._count = 0
        self._keys, self._columns = np.empty(0, np.uint32), np.empty(0, np.uint16)
        self._ends, self._texts = np.zeros(1, np.int32), np.empty(0, np.uint8)
        self._full = self._met is None

    def _no_bits(self) -> NDArray[np.uint64]:
        return np.zeros(max(1, self._places >> 6), np.uint64)

    def room(self, most: int, most_bytes: int) -> NameRoom | None:
        """Room for the notes of a chunk, at most this many with this many bytes, until this thread asks again; None
        if there are enough.
        """
        if self._full:
            return None
        room: NameRoom | None = getattr(self._rooms, "room", None)
        most = min(most, self._places)
        if room is None or len(room.notes) < most or len(room.texts) < most_bytes + WORD_BYTES:
            met = self._no_bits() if room is None else room.met
            assert self._met is not None
            notes, texts = np.empty(most + most // 4, np.uint64), np.empty(most_bytes * 5 // 4 + WORD_BYTES, np.uint8)
            room = self._rooms.room = NameRoom(
                met, notes, texts, np.empty(2 * len(self.columns), np.uint64), np.zeros(2, np.int64)
            )
        room.counts[:] = 0
        if self._met is not None and self._places <= MOST_SHARED:
            # Keys in chunks that were merged. These come before any chunk that is still parsed.
            np.bitwise_or(room.met, self._met, out=room.met)
        return room

    def note_cells(
        self, column: int, keys: NDArray[Any], first_key: int, text: NDArray[np.uint8], offsets: NDArray[np.int64]
    ) -> list[FoundTexts]:
        """Note cells of a column and their keys, `first_key` + hash: cell i is `text[offsets[i]:offsets[i + 1]]`."""
        if (room := self.room(len(keys), int(offsets[-1] - offsets[0]))) is None:
            return []
        note_cells(keys, np.uint64(first_key), np.uint64(self._places - 1), column, text, offsets, room)
        return self.found(room)

    def note_rows(
        self, column: int, keys: NDArray[Any], present: NDArray[np.bool_],
        spell: Callable[[NDArray[np.int64]], list[bytes]],
    ) -> list[FoundTexts]:  # fmt: skip
        """Note the keys of a column where they are present. Only if one is new, `spell` makes the texts of rows."""
        rows = np.flatnonzero(present)
        # Until they are spelled, the numbers of rows stand for their texts.
        offsets = np.arange(0, rows.nbytes + 1, rows.itemsize)
        numbered = self.note_cells(column, keys[rows], self.first_key, rows.view(np.uint8), offsets)
        return [FoundTexts(*_spelled(found.notes, spell(found.texts.view(np.int64)))) for found in numbered]

    def found(self, room: NameRoom | None) -> list[FoundTexts]:
        """What was noted of a chunk."""
        if room is None or not room.counts[0]:
            return []
        count, num_bytes = room.counts.tolist()
        return [FoundTexts(room.notes[:count].copy(), room.texts[:num_bytes].copy())]

    def take(self, found: Iterable[FoundTexts]) -> None:
        """Keep what is new of a chunk's texts. Chunks are given in the order of the input."""
        for notes, texts in found:
            if self._full:
                return
            assert self._met is not None
            self._make_room(self._count + len(notes), int(self._ends[self._count]) + len(texts))
            self._count = keep_new(
                notes, texts, self._met, self.first_key, self._count, self._keys, self._columns, self._ends, self._texts
            )
            self._full = int(self._ends[self._count]) + NOTE_BYTES * self._count > MOST_BYTES

    def _make_room(self, count: int, num_bytes: int) -> None:
        """Let there be room for this many texts with this many bytes. Room that stays empty takes no memory."""
        if count > len(self._keys):
            most = max(2 * count, min(self._places, MOST_BYTES // NOTE_BYTES))
            self._keys, self._columns = _grown(self._keys, most), _grown(self._columns, most)
            self._ends = _grown(self._ends, most + 1)
        if num_bytes + WORD_BYTES > len(self._texts):
            self._texts = _grown(self._texts, max(2 * num_bytes, MOST_BYTES) + WORD_BYTES)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about the names."""
        if self._met is None:
            return (f"names of features are not kept: they are for at most --hash-bits {MOST_BITS}",)
        if self._full:
            return (f"names are kept of the first features only: they take more than {MOST_BYTES >> 20} MiB",)
        return ()

    def write(self, folder: Path, numeric: tuple[str, ...]) -> NamesInfo:
        """Write the file of names to a dataset's folder, if there are any."""
        if not self._count:
            return NamesInfo(numeric=numeric, complete=not self._full)
        ends, texts = self._ends[: self._count + 1], self._texts[: self._ends[self._count]]
        column = pa.BinaryArray.from_buffers(pa.binary(), self._count, [None, pa.py_buffer(ends), pa.py_buffer(texts)])
        keys, columns = pa.array(self._keys[: self._count]), pa.array(self._columns[: self._count])
        table = pa.RecordBatch.from_arrays([keys, columns, column], schema=SCHEMA)
        return write_names(folder, table, NamesInfo(numeric=numeric, columns=self.columns, complete=not self._full))


def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    """A copy with room for more."""
    grown = np.empty(size, array.dtype)
    grown[: len(array)] = array
    return grown


def _spelled(notes: Notes, texts: Sequence[bytes]) -> tuple[Notes, NDArray[np.uint8]]:
    """The notes with other texts."""
    cut = [text[:LONGEST_TEXT] for text in texts]
    lengths = np.array([len(text) for text in cut], np.uint64) << LENGTH_SHIFT
    return notes & ~(np.uint64(0xFFFF) << LENGTH_SHIFT) | lengths, np.frombuffer(b"".join(cut), np.uint8)
