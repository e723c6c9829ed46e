from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.data.sources.tfrecord import TFRecord
from paceline.errors import DataError
from tests.data.inputs import (
    chunk_of,
    example,
    field,
    floats,
    integers,
    record,
    rows_of,
    rows_of_batch,
    run,
    sparse_example,
    text_of,
    unpacked_floats,
    unpacked_integers,
    varint,
    write,
)


def parse(*payloads: bytes, features: int | None = None, base: Any = 1) -> Any:
    data = b"".join(record(payload) for payload in payloads)
    return TFRecord(features, base).parse(chunk_of(text_of(data)), 1000)


FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
ROWS = st.lists(
    st.tuples(st.sampled_from([-1, 1]), st.dictionaries(st.integers(0, 2**32 - 2), FLOAT32, max_size=6)), max_size=5
)


@given(ROWS, st.booleans(), st.permutations(["label", "index", "value", "other"]))
def test_what_is_written_is_read(rows: list[tuple[int, dict[int, float]]], packed: bool, order: list[str]) -> None:
    payloads = []
    for label, row in rows:
        index, value = [key + 1 for key in row], list(row.values())
        parts = {
            "label": integers([label]) if packed else unpacked_floats([label]),
            "index": integers(index) if packed else unpacked_integers(index),
            "value": floats(value) if packed else unpacked_floats(value),
            "other": field(1, field(1, b"bytes")),
        }
        payloads.append(example(**{name: parts[name] for name in order}))
    parsed = parse(*payloads)
    assert parsed.bad == []
    assert rows_of_batch(parsed.batch) == rows


def test_without_values_all_are_one() -> None:
    assert rows_of_batch(parse(example(label=integers([1]), index=integers([3, 900]))).batch) == [
        (1, {2: 1.0, 899: 1.0})
    ]


def test_lists_in_several_pieces_and_fields_that_nobody_knows() -> None:
    index = field(3, field(1, varint(1)) + varint(1 << 3) + varint(300) + field(9, b"?"))
    payload = field(7, b"ignored") + example(label=floats([0.0]), index=index, value=floats([1.0, 2.0]))
    assert rows_of_batch(parse(payload).batch) == [(0, {0: 1.0, 299: 2.0})]


@pytest.mark.parametrize(
    ("payload", "column", "words"),
    [
        (b"\x0a\xff", "data", ["not a tf.Example"]),
        (b"hello there", "data", ["not a tf.Example"]),
        (example(index=integers([1]), value=floats([1.0])), "label", ["not one number"]),
        (example(label=integers([0, 1]), index=integers([1])), "label", ["not one number"]),
        (example(label=integers([5]), index=integers([1])), "label", ["`5`", "0 and 1"]),
        (example(label=floats([0.5]), index=integers([1])), "label", ["`0.5`"]),
        (example(label=integers([1])), "index", ["int64"]),
        (example(label=integers([1]), index=floats([1.0])), "index", ["int64"]),
        (sparse_example(1, [1, 2], [1.0]), "value", ["one float for each index"]),
        (sparse_example(1, [1], [1.0, 2.0]), "value", ["one float for each index"]),
        (example(label=integers([1]), index=integers([1]), value=integers([1])), "value", ["one float"]),
        (sparse_example(1, [0], [1.0]), "index", ["`0`", "below 1"]),
        (sparse_example(1, [-7], [1.0]), "index", ["`-7`", "below 1"]),
        (sparse_example(1, [101], [1.0]), "index", ["`101`", "100 features"]),
        (sparse_example(1, [1], [math.nan]), "value", ["`nan`", "finite"]),
        (sparse_example(1, [1, 2], [1.0, -math.inf]), "value", ["`-inf`", "finite"]),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, payload: bytes, column: str, words: list[str]) -> None:
    good = record(sparse_example(1, [1, 7], [0.5, 2.0]))
    path = write(tmp_path / "part-0", good + good + record(payload) + good)
    with pytest.raises(DataError) as error:
        run(tmp_path, path, features=100)
    for word in [str(path), "row 3", column, *words]:
        assert word in error.value.message
    made = run(tmp_path, path, features=100, skip_bad_rows=1)
    assert (made.rows, made.bad_rows) == (3, 1)
    assert rows_of(made.dataset) == [(1, {0: 0.5, 6: 2.0})] * 3


def test_a_broken_checksum_of_data_is_a_bad_row(tmp_path: Path) -> None:
    good = record(sparse_example(1, [1], [0.5]))
    path = write(tmp_path / "a", good + good[:-10] + bytes([good[-10] ^ 4]) + good[-9:] + good)
    with pytest.raises(DataError, match=r"row 2, data: wrong checksum"):
        run(tmp_path, path)
    assert run(tmp_path, path, skip_bad_rows=1).rows == 2


def test_a_broken_checksum_of_a_length_ends_it(tmp_path: Path) -> None:
    good = record(sparse_example(1, [1], [0.5]))
    path = write(tmp_path / "a", good + good[:4] + bytes([1]) + good[5:] + good)
    with pytest.raises(DataError, match=rf"record 2 at byte {len(good)}: wrong checksum of its length"):
        run(tmp_path, path, skip_bad_rows=10)


@pytest.mark.parametrize("cut", [1, 4, 5, 20, 30])
def test_a_file_that_is_cut_short_ends_it(tmp_path: Path, cut: int) -> None:
    good = record(sparse_example(1, [1], [0.5]))
    path = write(tmp_path / "a", good + good[:-cut])
    with pytest.raises(DataError, match=rf"record 2 at byte {len(good)}: cut short"):
        run(tmp_path, path, skip_bad_rows=10)


def test_bad_rows_before_the_cut_come_first(tmp_path: Path) -> None:
    good = record(sparse_example(1, [1], [0.5]))
    path = write(tmp_path / "a", good + record(b"?") + good[:-1])
    with pytest.raises(DataError, match="row 2"):
        run(tmp_path, path)


def test_index_base(tmp_path: Path) -> None:
    path = write(tmp_path / "a", record(sparse_example(1, [1, 4], [0.5, 1.0])))
    assert rows_of(run(tmp_path, path).dataset) == [(1, {0: 0.5, 3: 1.0})]
    assert rows_of(run(tmp_path, path, index_base="0").dataset) == [(1, {1: 0.5, 4: 1.0})]


@given(st.lists(st.binary(max_size=60), max_size=5), st.integers(0, 400), st.binary(max_size=4))
def test_hostile_records_parse_or_are_bad(payloads: list[bytes], place: int, splice: bytes) -> None:
    """Random bytes, and an example in which some bytes were replaced, all with the right checksums."""
    whole = sparse_example(1, [1, 300, 70_000], [1.0, 2.0, 3.0])
    place %= len(whole)
    parsed = parse(*payloads, whole[:place] + splice + whole[place + len(splice) :], whole[:place])
    assert parsed.num_numbered == len(payloads) + 2
    assert parsed.batch.num_rows + len(parsed.bad) == parsed.num_numbered
    assert np.isfinite(parsed.batch.values).all()
