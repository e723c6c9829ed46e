"""What are the features of a dataset called? `column=value` where texts were hashed, else by their column.

Hashing forgets the text, so `prepare` keeps it: threads that parse note the first text of each key
(`kernels/names.py`), the thread that takes chunks in their order merges the notes, and `names.arrow` beside the blocks
lists all keys in order. A key that stands for several texts is called by the first of them in the input.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from paceline.data.blocks.files import BlockInfo, MissingBlockError, read_table, write_table
from paceline.data.blocks.folders import Folder
from paceline.errors import DataError, printable, warn
from paceline.kernels.names import (
    LARGE_BUCKET,
    LENGTH,
    START,
    NameRoom,
    Notes,
    count_before,
    keep_new,
    lay_out_texts,
    note_cells,
    pack_texts,
    rank_notes,
)
from paceline.machine import num_cores

FILE: Literal["names.arrow"] = "names.arrow"
LONGEST_TEXT = 256  # bytes of a text that are kept
MOST_BYTES = 256 << 20  # of texts, and of 16 bytes for each of them
NOTE_BYTES = 16
MOST_BITS = 28  # hashed keys beyond 2 to this power: no names, as every thread that parses has one bit per key


class NamesInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a manifest says about the names of keys.

    `numeric` are the names of the first keys. Texts of hashed keys are in `file`, if that is not empty, with `columns`
    as what comes before their `=`. They are not `complete` if there was not room for all.
    """

    numeric: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    # No other name: the file is copied to folders of runs, where it replaces what has its name.
    file: Literal["", "names.arrow"] = ""
    rows: int = 0
    checksum: str = ""
    complete: bool = True


class FoundTexts(NamedTuple):
    """The texts of keys that a thread met for the first time in a chunk, one after the other."""

    notes: Notes
    packed: NDArray[np.uint8]


class NameCollector:
    """Collects the names of hashed keys, `first_key` + place, place below 2**hash_bits, from threads that parse.

    `columns` are the columns that are hashed, by the numbers that notes give them.
    """

    def __init__(self, columns: Sequence[str], hash_bits: int, first_key: int) -> None:
        self.columns = tuple(columns)
        self.first_key = first_key
        self._places = 1 << hash_bits
        self._met = self._no_bits() if hash_bits <= MOST_BITS else None
        self._rooms = threading.local()
        self._taken: list[FoundTexts] = []
        self._num_bytes = 0
        self._full = self._met is None

    def _no_bits(self) -> NDArray[np.uint64]:
        return np.zeros(max(1, self._places >> 6), np.uint64)

    def room(self, most: int) -> NameRoom | None:
        """Room for the notes of a chunk, at most this many, until this thread asks again; None if there are enough."""
        if self._full:
            return None
        room: NameRoom | None = getattr(self._rooms, "room", None)
        most = min(most, self._places)
        if room is None or len(room.notes) < most:
            met = self._no_bits() if room is None else room.met
            assert self._met is not None
            notes = np.empty((most + most // 4, 4), np.uint32)
            room = self._rooms.room = NameRoom(met, self._met, notes, np.zeros(1, np.int64))
        room.count[0] = 0
        return room

    def note_cells(
        self, column: int, keys: NDArray[Any], first_key: int, text: NDArray[np.uint8], offsets: NDArray[np.int64]
    ) -> list[FoundTexts]:
        """Note cells of a column and their keys, `first_key` + hash: cell i is `text[offsets[i]:offsets[i + 1]]`."""
        if (room := self.room(len(keys))) is None:
            return []
        note_cells(keys, np.uint64(first_key), np.uint64(self._places - 1), column, offsets, room)
        return self.found(room, text)

    def note_rows(
        self, column: int, keys: NDArray[Any], present: NDArray[np.bool_],
        spell: Callable[[NDArray[np.int64]], list[bytes]],
    ) -> list[FoundTexts]:  # fmt: skip
        """Note the keys of a column where they are present. Only if one is new, `spell` makes the texts of rows."""
        if (room := self.room(len(keys))) is None:
            return []
        ends = np.concatenate([[0], np.cumsum(present)])
        note_cells(
            np.ascontiguousarray(keys), np.uint64(self.first_key), np.uint64(self._places - 1), column, ends, room
        )
        notes = room.notes[: int(room.count[0])]
        if not len(notes):
            return []
        text = _put_texts(notes, spell(np.flatnonzero(present)[notes[:, START]]), 0)
        return self.found(room, text)

    def found(self, room: NameRoom | None, text: NDArray[np.uint8]) -> list[FoundTexts]:
        """What was noted of a text."""
        if room is None or not room.count[0]:
            return []
        notes = room.notes[: int(room.count[0])].copy()
        buckets = notes[:, LENGTH] >= LARGE_BUCKET
        if buckets.any():
            text = _spell_out(notes, np.flatnonzero(buckets), text)
        packed = np.empty(int(np.minimum(notes[:, LENGTH], LONGEST_TEXT).sum(dtype=np.int64)), np.uint8)
        pack_texts(notes, text, LONGEST_TEXT, packed)
        return [FoundTexts(notes, packed)]

    def take(self, found: Iterable[FoundTexts]) -> None:
        """Keep what is new of a chunk's texts. Chunks are given in the order of the input."""
        for notes, packed in found:
            if self._full:
                return
            assert self._met is not None
            kept, num_bytes = keep_new(notes, packed, self._met)
            self._num_bytes += num_bytes + NOTE_BYTES * kept
            self._full = self._num_bytes > MOST_BYTES
            if kept:
                self._taken.append(FoundTexts(notes[:kept].copy(), packed[:num_bytes].copy()))

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
        if not self._taken:
            return NamesInfo(numeric=numeric, complete=not self._full)
        assert self._met is not None
        before = np.empty(len(self._met) + 1, np.int64)
        count_before(self._met, before)
        count = int(before[-1])
        keys, columns = np.empty(count, np.uint32), np.empty(count, np.uint16)
        ends = np.zeros(count + 1, np.int32)
        with ThreadPoolExecutor(num_cores(), thread_name_prefix="paceline-names") as threads:
            ranked = [
                threads.submit(rank_notes, found.notes, self._met, before, self.first_key, keys, columns, ends)
                for found in self._taken
            ]
            for done in ranked:
                done.result()
            np.cumsum(ends, out=ends)
            texts = np.empty(int(ends[-1]), np.uint8)
            for done in [threads.submit(lay_out_texts, *found, ends, texts) for found in self._taken]:
                done.result()
        self._taken.clear()
        column = pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(texts)])
        table = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(columns), column], schema=SCHEMA)
        checksum = write_table(folder / FILE, table)
        return NamesInfo(
            numeric=numeric, columns=self.columns, file=FILE, rows=count, checksum=checksum, complete=not self._full
        )


SCHEMA = pa.schema([("key", pa.uint32()), ("column", pa.uint16()), ("text", pa.binary())])


def _spell_out(notes: Notes, buckets: NDArray[np.int64], text: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Replace noted buckets by their texts, which follow the given one."""
    numbers = notes[buckets, START].view(np.int32).tolist()
    large = (notes[buckets, LENGTH] == LARGE_BUCKET).tolist()
    spelled = [f"{'b' * is_large}{number}".encode() for number, is_large in zip(numbers, large, strict=True)]
    chosen = notes[buckets]
    more = _put_texts(chosen, spelled, len(text))
    notes[buckets] = chosen
    return np.concatenate([text, more])


def _put_texts(notes: Notes, texts: Sequence[bytes], start: int) -> NDArray[np.uint8]:
    """Let notes say where their texts are: one after the other, from `start` on. Returns these."""
    lengths = np.array([len(one) for one in texts])
    notes[:, LENGTH] = lengths
    notes[:, START] = start + np.cumsum(lengths) - lengths
    return np.frombuffer(b"".join(texts), np.uint8)


class FeatureNames:
    """The names of a dataset's or a model's keys; those without a name are called by their index in the
    source, which counts from 0 or 1.

    `folder` has the file of names, and `source` says how the data was made: it names the numeric columns of data that
    older versions prepared.

    >>> FeatureNames(None, NamesInfo(numeric=("age",)), {}).of([0, 7])
    ['age', '7']
    """

    def __init__(self, folder: Folder | None, info: NamesInfo, source: dict[str, Any]) -> None:
        self._folder = folder
        self.info = info
        self._numeric = info.numeric or _numeric_of(source)
        base = source.get("index_base", 0)
        self._base = base if isinstance(base, int) else 0

    def of(self, keys: Iterable[int] | NDArray[Any]) -> list[str]:
        """The names of keys, in their order."""
        wanted = np.asarray([*keys] if not isinstance(keys, np.ndarray) else keys, np.uint64)
        found, texts = self._texts(wanted)
        numeric, columns = self._numeric, self.info.columns
        return [
            f"{printable(columns[column])}={_shown(text)}" if is_named
            else printable(numeric[key]) if key < len(numeric) else str(key + self._base)
            for key, is_named, (column, text) in zip(wanted.tolist(), found.tolist(), texts, strict=True)
        ]  # fmt: skip

    def has(self, keys: Iterable[int] | NDArray[Any]) -> NDArray[np.bool_]:
        """Which of some keys have a name."""
        wanted = np.asarray([*keys] if not isinstance(keys, np.ndarray) else keys, np.uint64)
        named: NDArray[np.bool_] = self._find(wanted)[1] | (wanted < len(self._numeric))
        return named

    def count_by_column(self) -> dict[str, int]:
        """How many hashed keys are called by each column."""
        if self._table is None:
            return {}
        counts = np.bincount(self._table.column("column").to_numpy(), minlength=len(self.info.columns))
        return {name: count for name, count in zip(self.info.columns, counts.tolist(), strict=True) if count}

    @cached_property
    def _table(self) -> pa.RecordBatch | None:
        """The file of names; None if there is none, or if it was removed."""
        if self._folder is None or not self.info.file:
            return None
        try:
            table = read_table(self._folder, BlockInfo(FILE, self.info.rows, 0, 0, self.info.checksum), SCHEMA)
        except MissingBlockError:
            warn(f"`{self._folder}/{FILE}` is missing: features are called by their keys")
            return None
        keys, columns = table.column("key").to_numpy(), table.column("column").to_numpy()
        if (keys[1:] <= keys[:-1]).any() or columns.max(initial=0) >= len(self.info.columns):
            raise DataError(f"`{self._folder}/{FILE}` does not match the manifest", "prepare the data again")
        return table

    def _find(self, wanted: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Where keys are in the table, and whether they are there."""
        if self._table is None or not self._table.num_rows:
            return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
        keys = self._table.column("key").to_numpy()
        places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return places, keys[places] == wanted

    def _texts(self, wanted: NDArray[np.uint64]) -> tuple[NDArray[np.bool_], list[tuple[int, bytes]]]:
        """Which keys have a text, and the column and text of each; of those without, some other."""
        places, found = self._find(wanted)
        if not found.any():
            return found, [(0, b"")] * len(wanted)
        assert self._table is not None
        chosen = self._table.take(pa.array(places))
        columns, texts = chosen.column("column").to_pylist(), chosen.column("text").to_pylist()
        return found, [*zip(columns, texts, strict=True)]


def _shown(text: bytes) -> str:
    cut = "…" if len(text) == LONGEST_TEXT else ""
    return printable(text.decode(errors="backslashreplace")) + cut


def _numeric_of(source: dict[str, Any]) -> tuple[str, ...]:
    """The names of the first keys, in data that was prepared before manifests had them."""
    columns = source.get("columns")
    if isinstance(columns, dict):
        return tuple(name for name, kind in columns.items() if kind == "number")
    return tuple(f"I{j}" for j in range(1, 14)) if source.get("integers") == "log" else ()
