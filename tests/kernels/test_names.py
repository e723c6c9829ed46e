"""Loops that note texts and count keys, against plain Python."""

from __future__ import annotations

import numpy as np

from paceline.kernels.keys import fill_dictionary
from paceline.kernels.names import (
    LONGEST_TEXT,
    NameRoom,
    count_keys,
    count_listed,
    keep_new,
    mark_keys,
    note_cells,
)
from paceline.kernels.words import copy_bytes

Found = tuple[list[int], list[int], list[bytes]]


def note(room: NameRoom, cells: list[bytes], keys: list[int]) -> None:
    """Note cells of column 3, whose keys are 10 and a place below 128."""
    text, offsets = np.frombuffer(b"".join(cells), np.uint8), np.cumsum([0, *map(len, cells)]).astype(np.int64)
    note_cells(np.array(keys, np.uint32), np.uint64(10), np.uint64(127), 3, text, offsets, room)


def empty_room() -> NameRoom:
    return NameRoom(
        np.zeros(2, np.uint64), np.empty(8, np.uint64), np.empty(400, np.uint8), np.empty(2, np.uint64),
        np.zeros(2, np.int64),
    )  # fmt: skip


def kept(room: NameRoom, met: list[int]) -> Found:
    """The keys, columns and texts of the notes, if these keys were met before."""
    bits = np.zeros(2, np.uint64)
    mark_keys(np.array(met, np.uint32), bits)
    count, num_bytes = room.counts.tolist()
    keys, columns = np.empty(8, np.uint32), np.empty(8, np.uint16)
    ends, texts = np.zeros(9, np.int32), np.empty(400, np.uint8)
    count = keep_new(room.notes[:count], room.texts[:num_bytes], bits, 10, 0, keys, columns, ends, texts)
    found = [texts[ends[i] : ends[i + 1]].tobytes() for i in range(count)]
    assert all(bits[(key - 10) // 64] >> np.uint64((key - 10) % 64) & np.uint64(1) for key in keys[:count].tolist())
    return keys[:count].tolist(), columns[:count].tolist(), found


def test_the_first_text_of_each_key_is_noted() -> None:
    room = empty_room()
    note(room, [b"pear", b"", b"fig", b"plum", b"a long text"], [110, 0, 13, 110, 75])
    assert kept(room, []) == ([110, 13, 75], [3, 3, 3], [b"pear", b"fig", b"a long text"])
    assert kept(room, [3]) == ([110, 75], [3, 3], [b"pear", b"a long text"])


def test_a_key_of_an_earlier_chunk_is_not_noted_again() -> None:
    room = empty_room()
    note(room, [b"pear", b"fig"], [110, 13])
    room.counts[:] = 0
    note(room, [b"plum", b"fig"], [20, 13])
    assert kept(room, []) == ([20], [3], [b"plum"])


def test_long_texts_are_cut() -> None:
    room = empty_room()
    note(room, [b"x" * 300, b"y"], [10, 11])
    assert kept(room, []) == ([10, 11], [3, 3], [b"x" * LONGEST_TEXT, b"y"])


def test_bytes_are_copied_up_to_the_end_of_the_source() -> None:
    source = np.arange(30, dtype=np.uint8)
    for start in range(30):
        for length in range(31 - start):
            target = np.full(50, 255, np.uint8)
            copy_bytes(source, start, length, target, 3)
            assert target[3 : 3 + length].tolist() == list(range(start, start + length))
            assert (target[:3] == 255).all()
            assert (target[3 + length + 8 :] == 255).all()


def test_keys_are_counted() -> None:
    keys, counts = np.random.default_rng(0).integers(0, 50, 2000).astype(np.uint32), np.zeros(60, np.uint32)
    count_keys(keys, counts)
    np.testing.assert_array_equal(counts, np.bincount(keys, minlength=60))


def test_listed_keys_are_counted() -> None:
    random = np.random.default_rng(0)
    keys, listed = random.integers(0, 500, 20_000).astype(np.uint32), np.array([499, 3, 77], np.uint64)
    dictionary, counts = np.zeros((16, 2), np.uint64), np.zeros(3, np.int64)
    fill_dictionary(dictionary, listed, np.arange(3, dtype=np.uint64))
    count_listed(keys, dictionary, counts)
    assert counts.tolist() == [int((keys == key).sum()) for key in listed]
