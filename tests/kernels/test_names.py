"""Loops that note texts and count keys, against plain Python."""

from __future__ import annotations

import numpy as np

from paceline.kernels.keys import fill_dictionary
from paceline.kernels.names import (
    NameRoom,
    count_before,
    count_listed,
    keep_new,
    lay_out_texts,
    mark_keys,
    note_cells,
    pack_texts,
    rank_notes,
)


def test_noted_cells_become_texts_in_the_order_of_their_keys() -> None:
    cells = [b"pear", b"", b"fig", b"pear", b"a long text"]
    text = np.frombuffer(b"".join(cells), np.uint8)
    offsets = np.cumsum([0, *map(len, cells)]).astype(np.int64)
    keys = np.array([110, 0, 13, 110, 75], np.uint32)
    room = NameRoom(np.zeros(2, np.uint64), np.zeros(2, np.uint64), np.empty((8, 4), np.uint32), np.zeros(1, np.int64))
    note_cells(keys, np.uint64(10), np.uint64(127), 3, offsets, room)
    notes = room.notes[: room.count[0]]
    assert notes[:, 0].tolist() == [100, 3, 65]
    packed = np.empty(40, np.uint8)
    assert pack_texts(notes, text, 6, packed) == 4 + 3 + 6
    met = np.zeros(2, np.uint64)
    met[0] = np.uint64(1 << 3)  # fig was met in an earlier chunk
    kept, num_bytes = keep_new(notes, packed, met)
    assert (kept, packed[:num_bytes].tobytes()) == (2, b"peara long")
    met[0] = 0
    mark_keys(np.array([65], np.uint32), met)
    before = np.empty(3, np.int64)
    count_before(met, before)
    assert before.tolist() == [0, 0, 2]
    found, columns, ends = np.empty(2, np.uint32), np.empty(2, np.uint16), np.zeros(3, np.int32)
    rank_notes(notes[:kept], met, before, 10, found, columns, ends)
    np.cumsum(ends, out=ends)
    texts = np.empty(ends[-1], np.uint8)
    lay_out_texts(notes[:kept], packed, ends, texts)
    assert (found.tolist(), columns.tolist()) == ([75, 110], [3, 3])
    assert texts.tobytes() == b"a longpear"


def test_ranks_count_all_bits_before() -> None:
    random = np.random.default_rng(0)
    marked = random.random(64 * 50) < 0.5
    met = np.zeros(50, np.uint64)
    assert mark_keys(np.flatnonzero(marked), met) == marked.sum()
    before = np.empty(51, np.int64)
    count_before(met, before)
    np.testing.assert_array_equal(before, np.cumsum([0, *marked.reshape(50, 64).sum(1)]))


def test_listed_keys_are_counted() -> None:
    random = np.random.default_rng(0)
    keys, listed = random.integers(0, 500, 20_000).astype(np.uint32), np.array([499, 3, 77], np.uint64)
    dictionary, counts = np.zeros((16, 2), np.uint64), np.zeros(3, np.int64)
    fill_dictionary(dictionary, listed, np.arange(3, dtype=np.uint64))
    count_listed(keys, dictionary, counts)
    assert counts.tolist() == [int((keys == key).sum()) for key in listed]
