from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.data.sources.criteo import Criteo, LineLayout, find_layout
from paceline.errors import DataError
from tests.data.inputs import chunk_of, criteo_row, rows_of, rows_of_batch, run, text_of, write
from tests.kernels.test_hashing import reference

BITS = 10


def log_value(x: float) -> float:
    return float(np.float32(math.copysign(0.3 * math.log1p(abs(x)), x)))


def expected_row(label: int, numbers: list[str], strings: list[str], kind: str) -> tuple[int, dict[int, float]]:
    features: dict[int, float] = {}

    def add(key: int, value: float) -> None:
        features[key] = float(np.float32(features.get(key, 0) + value))

    shift = 13 if kind == "log" else 0
    for j, text in enumerate([*numbers, *[""] * (13 - len(numbers))]):
        if not text:
            add(shift + reference(f"I{j + 1}", b"") % 2**BITS, 1)
        elif kind == "log":
            add(j, log_value(float(np.float32(float(text)))))
        else:
            x = float(np.float32(float(text)))
            bucket = f"b{math.floor(math.log(x) ** 2)}" if x > 2 else str(math.floor(x))
            add(reference(f"I{j + 1}", bucket.encode()) % 2**BITS, 1)
    for j, text in enumerate(strings):
        if text:
            add(reference(f"C{j + 1}", text.encode()) % 2**BITS + shift, 1)
    return label, features


def same(a: tuple[int, dict[int, float]], b: tuple[int, dict[int, float]]) -> bool:
    return (
        a[0] == b[0] and list(a[1]) == list(b[1]) and np.allclose(list(a[1].values()), list(b[1].values()), rtol=1e-6)
    )


NUMBERS = st.lists(st.one_of(st.just(""), st.integers(-5, 5000).map(str), st.integers(0, 2**31).map(str)), max_size=13)
STRINGS = st.lists(st.one_of(st.just(""), st.text("0123456789abcdef", max_size=8), st.just("ä β")), max_size=26)


@given(
    st.lists(st.tuples(st.sampled_from([0, 1]), NUMBERS, STRINGS), min_size=1, max_size=5),
    st.sampled_from(["log", "bucket"]),
    st.sampled_from(["\t", ","]),
    st.sampled_from(["\n", "\r\n"]),
)
def test_rows_against_a_plain_reference(
    rows: list[tuple[int, list[str], list[str]]], kind: Any, separator: str, ending: str
) -> None:
    lines = [criteo_row(str(label), numbers, strings, separator) for label, numbers, strings in rows]
    text = "".join(lines).replace("\n", ending)
    parsed = Criteo(LineLayout(ord(separator), 0), BITS, kind).parse(chunk_of(text_of(text.encode())), 1)
    found = rows_of_batch(parsed.batch)
    assert parsed.bad == []
    assert len(found) == len(rows)
    for row, (label, numbers, strings) in zip(found, rows, strict=True):
        assert same(row, expected_row(label, numbers, strings, kind))


@pytest.mark.parametrize("separator", ["\t", ","])
@pytest.mark.parametrize("with_id", [False, True])
@pytest.mark.parametrize("with_header", [False, True])
def test_header_id_and_separator_are_recognised(
    tmp_path: Path, separator: str, with_id: bool, with_header: bool
) -> None:
    names = ["Label", *(f"I{j}" for j in range(1, 14)), *(f"C{j}" for j in range(1, 27))]
    lines = [separator.join(names) + "\n"] if with_header else []
    lines += [criteo_row("1", ["7", "-2"], ["x", "", "z"], separator), criteo_row("0", ["", "0"], [], separator)]
    if with_id:
        lines = [("Id" if line.startswith("Label") else "10000001") + separator + line for line in lines]
    made = run(tmp_path, write(tmp_path / "a", "".join(lines)), hash_bits=BITS)
    assert made.dataset.manifest.source["format"] == "criteo"
    assert made.dataset.features == 13 + 2**BITS
    first, second = rows_of(made.dataset)
    assert same(first, expected_row(1, ["7", "-2"], ["x", "", "z"], "log"))
    assert same(second, expected_row(0, ["", "0"], [], "log"))


def test_every_file_may_have_a_header(tmp_path: Path) -> None:
    header = "\t".join(["label", *(f"I{j}" for j in range(1, 14)), *(f"C{j}" for j in range(1, 27))]) + "\n"
    paths = [write(tmp_path / name, header + criteo_row("1", ["3"])) for name in "ab"]
    assert run(tmp_path, *paths, hash_bits=BITS).rows == 2


def test_buckets_have_their_own_number_of_features(tmp_path: Path) -> None:
    path = write(tmp_path / "a", criteo_row("1", ["3", "2", "1.5", "-1"], ["x"]))
    made = run(tmp_path, path, hash_bits=BITS, integers="bucket")
    assert made.dataset.features == 2**BITS
    assert same(rows_of(made.dataset)[0], expected_row(1, ["3", "2", "1.5", "-1"], ["x"], "bucket"))


@pytest.mark.parametrize(
    ("line", "column", "words"),
    [
        (criteo_row("2"), "label", ["`2`", "0 and 1"]),
        (criteo_row(""), "label", ["not a label"]),
        (criteo_row("yes"), "label", ["`yes`"]),
        (criteo_row("1", ["1", "2x"]), "I2", ["`2x`", "not a number"]),
        (criteo_row("1", ["1", "", "abc"]), "I3", ["`abc`", "not a number"]),
        (criteo_row("1", [*[""] * 12, "nan"]), "I13", ["`nan`", "finite"]),
        (criteo_row("1", ["1e99"]), "I1", ["`1e99`", "finite"]),
        ("1\t2\t3\n", "I2", ["3 columns instead of 40"]),
        ("1\n", "label", ["1 columns instead of 40"]),
        (criteo_row("1")[:-2] + "\n", "C25", ["39 columns instead of 40"]),
        (criteo_row("1")[:-1] + "\tx\n", "C26", ["41 columns instead of 40"]),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, line: str, column: str, words: list[str]) -> None:
    good = criteo_row("1", ["1"], ["a"])
    path = write(tmp_path / "rows.tsv", good + good + line + good)
    with pytest.raises(DataError) as error:
        run(tmp_path, path, hash_bits=BITS)
    for word in [str(path), "row 3", f"column {column}", *words]:
        assert word in error.value.message
    made = run(tmp_path, path, hash_bits=BITS, skip_bad_rows=1)
    assert (made.rows, made.bad_rows) == (3, 1)


def test_files_without_labels_are_refused(tmp_path: Path) -> None:
    names = ["Id", *(f"I{j}" for j in range(1, 14)), *(f"C{j}" for j in range(1, 27))]
    kaggle = write(tmp_path / "test.csv", ",".join(names) + "\n60000000" + "," * 39 + "\n")
    plain = write(tmp_path / "test.txt", criteo_row("x", ["5"], ["a"])[2:])
    for path in (kaggle, plain):
        with pytest.raises(DataError, match="no label column"):
            run(tmp_path, path)


def test_other_text_is_not_criteo(tmp_path: Path) -> None:
    assert find_layout(b"a,b,c") is None
    with pytest.raises(DataError, match="not a Criteo row"):
        run(tmp_path, write(tmp_path / "a", "a,b,c\n"), format="criteo")


@given(st.lists(st.text("0123456789\t,-.xab\r", max_size=60), max_size=6), st.binary(max_size=60))
def test_hostile_text_parses_or_is_bad(lines: list[str], data: bytes) -> None:
    text = criteo_row().encode() + "\n".join(lines).encode() + b"\n" + data + b"\t" * 39 + data[:3] + b"\n"
    for layout in (LineLayout(9, 0), LineLayout(44, 0), LineLayout(9, 1)):
        parsed = Criteo(layout, BITS, "bucket").parse(chunk_of(text_of(text), start=1), 1000)
        assert parsed.num_numbered == text.count(b"\n")
        assert parsed.batch.num_rows + len(parsed.bad) <= parsed.num_numbered
        assert (parsed.batch.keys < 2**BITS).all()


def test_32_hash_bits_need_wider_keys(tmp_path: Path) -> None:
    made = run(tmp_path, write(tmp_path / "a", criteo_row("1", ["5"], ["a", "b"])), hash_bits=32)
    assert made.dataset.features == 2**32 + 13
    assert made.dataset.block("train", 0).keys.dtype == np.uint64
    blanks = {reference(f"I{j}", b"") % 2**32 + 13 for j in range(2, 14)}
    strings = {reference("C1", b"a") % 2**32 + 13, reference("C2", b"b") % 2**32 + 13}
    assert set(made.dataset.manifest.hot_keys) == {0} | blanks | strings


@pytest.mark.parametrize(
    "header", ["", "label," + ",".join([f"I{j}" for j in range(1, 14)] + [f"C{j}" for j in range(1, 27)]) + "\n"]
)
def test_a_byte_order_mark_is_passed_over(tmp_path: Path, header: str) -> None:
    rows = header + criteo_row("1", ["3"], ["a"], ",")
    plain, marked = write(tmp_path / "a", rows), write(tmp_path / "b", "\ufeff" + rows)
    expected, made = run(tmp_path, plain, hash_bits=10), run(tmp_path, marked, hash_bits=10)
    assert made.dataset.manifest.source["format"] == "criteo"
    assert rows_of(made.dataset) == rows_of(expected.dataset)


@pytest.mark.parametrize("integers", ["log", "bucket"])
def test_each_column_may_be_a_field(tmp_path: Path, integers: Any) -> None:
    path = write(tmp_path / "a", criteo_row("1", ["3", "", "2"], ["x", "", "y"]))
    dataset = run(tmp_path, path, fields=True, integers=integers).dataset
    fields = dataset.block("train", 0).fields
    assert fields is not None
    assert fields.tolist() == [*range(13), 13, 15]
    assert dataset.manifest.fields == (*(f"I{j}" for j in range(1, 14)), *(f"C{j}" for j in range(1, 27)))
