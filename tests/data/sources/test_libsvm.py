from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.data.prepare_settings import PrepareConfig
from paceline.data.sources.libsvm import Libsvm, find_base, has_labels
from paceline.errors import DataError
from tests.data.inputs import chunk_of, rows_of, rows_of_batch, run, text_of, write


def parse(text: str | bytes, features: int | None = None, base: Any = 1, most_bad: int = 1000) -> Any:
    content = text.encode() if isinstance(text, str) else text
    return Libsvm(features, base).parse(chunk_of(text_of(content)), most_bad)


def test_labels_comments_qid_and_blanks() -> None:
    text = "# a header\n+1 3:0.5 7:2 # why\n\n-1 qid:7 1:1e-3\t2:+.5 \r\n 1.0\n-1 qid:3\n1#c\n"
    parsed = parse(text)
    third = float(np.float32(1e-3))
    assert rows_of_batch(parsed.batch) == [(1, {2: 0.5, 6: 2.0}), (-1, {0: third, 1: 0.5}), (1, {}), (-1, {}), (1, {})]
    assert parsed.num_numbered == 7
    assert parsed.bad == []
    assert parsed.rows.tolist() == [2, 4, 5, 6, 7]


ROWS = st.lists(
    st.tuples(
        st.sampled_from([0, 1]),
        st.dictionaries(
            st.integers(0, 2**32 - 2), st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=9
        ),
    ),
    max_size=20,
)


@given(ROWS, st.sampled_from([0, 1]), st.sampled_from(["{!r}", "{:.9g}", "{:.30e}"]))
def test_what_is_written_is_read(rows: list[tuple[int, dict[int, float]]], base: int, spelling: str) -> None:
    lines = [
        " ".join([str(label), *(f"{key + base}:{spelling.format(value)}" for key, value in features.items())])
        for label, features in rows
    ]
    assert rows_of_batch(parse("".join(line + "\n" for line in lines), base=base).batch) == rows


@given(st.lists(st.text("0123456789:. -+e#qid\tnaf\r", max_size=30), max_size=8), st.binary(max_size=40))
def test_hostile_text_parses_or_is_bad(lines: list[str], data: bytes) -> None:
    text = "\n".join(lines).encode() + b"\n" + data + b"\n"
    parsed = parse(text)
    assert parsed.num_numbered == text.count(b"\n")
    assert parsed.batch.num_rows + len(parsed.bad) <= parsed.num_numbered
    assert np.isfinite(parsed.batch.values).all()
    assert all(1 <= row.row <= parsed.num_numbered for row in parsed.bad)


@pytest.mark.parametrize(
    ("line", "column", "words"),
    [
        ("one 1:1", 1, ["`one`", "not a finite number"]),
        ("2 1:1", 1, ["`2`", "0 and 1"]),
        ("0.5 1:1", 1, ["`0.5`", "0 and 1"]),
        ("nan 1:1", 1, ["`nan`"]),
        ("1:2 3:4", 1, ["`1:2`", "not a finite number"]),
        ("1 3", 3, ["`3`", "index:value"]),
        ("1 3qid:4", 3, ["`3qid:4`", "index:value"]),
        ("1 1:1\x01 2:1", 6, ["index:value"]),
        ("1 1:1 x:2", 7, ["`x:2`", "index:value"]),
        ("1 -4:2", 3, ["`-4:2`"]),
        ("1 3:abc", 3, ["`3:abc`", "number"]),
        ("1 3:", 3, ["`3:`", "number"]),
        ("1 3:1:2", 3, ["`3:1:2`", "number"]),
        ("1 3:nan", 3, ["`3:nan`", "finite"]),
        ("1 3:-inf", 3, ["`3:-inf`", "finite"]),
        ("1 3:1e39", 3, ["`3:1e39`", "finite"]),
        ("1 0:1", 3, ["`0:1`", "below 1"]),
        ("1 11:1", 3, ["`11:1`", "10 features"]),
        ("1 99999999999999999999:1", 3, ["`99999999999999999999:1`", "18 digits"]),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, line: str, column: int, words: list[str]) -> None:
    path = write(tmp_path / "rows.txt", f"1 1:1\n# comment\n{line}\n0 2:1\n")
    with pytest.raises(DataError) as error:
        run(tmp_path, path, features=10, format="libsvm", index_base="1")
    for word in [str(path), "row 3", f"column {column}", *words]:
        assert word in error.value.message
    assert "--skip-bad-rows" in error.value.hint
    made = run(tmp_path, path, features=10, format="libsvm", index_base="1", skip_bad_rows=1)
    assert (made.rows, made.bad_rows) == (2, 1)
    assert rows_of(made.dataset) == [(1, {0: 1.0}), (0, {1: 1.0})]


def test_a_row_that_is_bad_at_its_end_leaves_nothing_behind() -> None:
    parsed = parse("1 1:5 2:1.00000000000000000000001 3:x\n0 4:7\n")
    assert rows_of_batch(parsed.batch) == [(0, {3: 7.0})]
    assert [row.row for row in parsed.bad] == [1]


def test_numbers_that_python_must_round() -> None:
    """1 + 2**-24 is half-way between two float32; the digits behind decide."""
    half = "1.000000059604644775390625"
    parsed = parse(f"1 1:{half} 2:{half}0000000000000000000001 3:9 4:{half}\n")
    expected = [np.float32(float(text)) for text in (half, half + "0000000000000000000001", "9", half)]
    assert parsed.batch.values.tolist() == [float(value) for value in expected]
    labels = parse(f"{half} 1:1\n{half}0000000000000000000001 x\n2 1:{half}\n{half}0000000000000000000001 1:1\n").batch
    assert labels.labels.tolist() == [float(expected[0]), 2.0, float(expected[1])]
    assert labels.values.tolist() == [1.0, float(expected[0]), 1.0]


def test_where_indices_count_from(tmp_path: Path) -> None:
    assert find_base(text_of(write(tmp_path / "one", "1 1:1\n0 2:1\n").read_bytes())) == 1
    assert find_base(text_of(write(tmp_path / "zero", "1 5:1\n0 0:1 2:1\n").read_bytes())) == 0
    zero = run(tmp_path, tmp_path / "zero")
    assert rows_of(zero.dataset) == [(1, {5: 1.0}), (0, {0: 1.0, 2: 1.0})]
    assert zero.dataset.manifest.source["index_base"] == 0
    assert rows_of(run(tmp_path, tmp_path / "one", index_base="0").dataset)[0] == (1, {1: 1.0})


def test_an_index_of_0_that_comes_late_says_what_to_do(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "1 1:1\n")
    write(tmp_path / "b.txt", "1 1:1\n0 0:1\n")
    with pytest.raises(DataError) as error:
        run(tmp_path, tmp_path / "a.txt", tmp_path / "b.txt")
    assert "b.txt`, row 2" in error.value.message
    assert "--index-base 0" in error.value.hint


def test_keys_of_more_than_32_bits_must_be_declared(tmp_path: Path) -> None:
    path = write(tmp_path / "wide.txt", f"1 {2**32 + 1}:1\n0 1:1\n")
    with pytest.raises(DataError) as error:
        run(tmp_path, path)
    assert "--features" in error.value.hint
    made = run(tmp_path, path, features=2**33)
    keys = made.dataset.block("train", 0).keys
    assert keys.dtype == np.uint64
    assert made.dataset.features == 2**33
    assert sorted(made.dataset.manifest.hot_keys) == [0, 2**32]


def test_repeated_keys_are_added(tmp_path: Path) -> None:
    assert rows_of(run(tmp_path, write(tmp_path / "a", "1 3:1 3:2 4:1\n")).dataset) == [(1, {2: 3.0, 3: 1.0})]


@pytest.mark.parametrize("features", [None, 2**40])
def test_an_index_that_can_never_be_read_says_which_can(tmp_path: Path, features: int | None) -> None:
    path = write(tmp_path / "a", "1 1:1\n0 99999999999999999999:1\n")
    with pytest.raises(DataError, match=r"row 2, column 3: `99999999999999999999:1` is a key of more") as error:
        run(tmp_path, path, features=features)
    assert "largest that can be read is 999999999999999999;" in error.value.hint
    assert "--features" not in error.value.hint


def test_the_bias_has_a_key_of_its_own_behind_the_last_32_bit_key(tmp_path: Path) -> None:
    path = write(tmp_path / "a", f"1 {2**32}:1\n0 1:1\n")
    with pytest.raises(DataError, match=r"row 1, .* is a key above 4294967295"):
        run(tmp_path, path)
    made = run(tmp_path, path, features=2**32).dataset
    assert made.key_dtype == made.block("train", 0).keys.dtype == np.uint64
    below = run(tmp_path, write(tmp_path / "b", f"1 {2**32 - 1}:1\n0 1:1\n")).dataset
    assert below.features == 2**32 - 1
    assert below.key_dtype == below.block("train", 0).keys.dtype == np.uint32


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "\ufeff1 0:2\n0 x\n")
    made = run(tmp_path, path, skip_bad_rows=1)
    assert rows_of(made.dataset) == [(1, {0: 2.0})]
    with pytest.raises(DataError, match="no rows"):
        run(tmp_path, write(tmp_path / "b", "\ufeff"), format="libsvm")


def test_where_keys_count_from_is_said_if_it_was_found_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "1 0:2\n0 1:1\n")
    assert run(tmp_path, path).notes == ("keys count from 0",)
    assert run(tmp_path, write(tmp_path / "b", "1 1:2\n")).notes == ("keys count from 1",)
    assert run(tmp_path, path, index_base="0").notes == ()


def test_labels_may_be_followed_by_weights(tmp_path: Path) -> None:
    made = run(tmp_path, write(tmp_path / "a", "# first\n1:2 1:1\n0:0.25 2:1 # why\n1 1:3\n0:0\n"))
    assert rows_of(made.dataset) == [(1, {0: 1.0}), (0, {1: 1.0}), (1, {0: 3.0}), (0, {})]
    weights = made.dataset.block("train", 0).weights
    assert weights is not None
    assert weights.tolist() == [2, 0.25, 1, 0]
    assert made.notes == ("keys count from 1", "labels are followed by weights")
    assert made.dataset.manifest.weighted
    assert made.dataset.manifest.train.weights == 3.25


@pytest.mark.parametrize("weight", ["-1", "nan", "inf", "1e39", "x", "", "1:1"])
def test_what_is_not_a_weight_is_named(tmp_path: Path, weight: str) -> None:
    path = write(tmp_path / "a", f"1:2 1:1\n0:{weight} 2:1\n")
    with pytest.raises(DataError, match=rf"a`, row 2, column 1: `0:{weight}` has a weight that is not a finite number"):
        run(tmp_path, path)
    assert run(tmp_path, path, skip_bad_rows=1).rows == 1


def test_weights_that_come_late_are_bad_rows(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="row 2, column 1: the label is `0:1`") as error:
        run(tmp_path, write(tmp_path / "a", "1 1:1\n0:1 1:1\n"))
    assert "the first row needs one too" in error.value.hint


def test_fields_as_libffm_reads_them(tmp_path: Path) -> None:
    made = run(tmp_path, write(tmp_path / "a", "1 0:3:1 4:1:0.5\n0:2 2:1:1 # why\n0\n"), skip_bad_rows=1)
    assert made.dataset.manifest.source["format"] == "libffm"
    assert made.dataset.manifest.fields == ("0", "1", "2", "3", "4")
    assert made.bad_rows == 1  # the weight
    assert rows_of(made.dataset) == [(1, {2: 1.0, 0: 0.5}), (0, {})]
    fields = made.dataset.block("train", 0).fields
    assert fields is not None
    assert fields.tolist() == [0, 4]
    assert run(tmp_path, write(tmp_path / "b", "1:2 0:0:1\n0:3 1:2:1\n")).dataset.manifest.weighted


@pytest.mark.parametrize(
    ("line", "column", "words"),
    [
        ("1 65536:1:1", 3, "`65536:1:1` has a field above 65535"),
        ("1 99999999999999999999:1:1", 3, "has a field above 65535"),
        ("1 0:1:1 3:1", 9, "`3:1` is not `field:index:value`"),
        ("1 0:1:1 3", 9, "`3` is not `field:index:value`"),
        ("1 0:1:1 :1:1", 9, "`:1:1` is not `field:index:value`"),
        ("1 0::1", 3, "`0::1` is not `field:index:value`"),
        ("1 0:0:1", 3, "`0:0:1` is a key below 1"),
        ("1 0:1:nan", 3, "`0:1:nan` is not a finite number"),
    ],
)
def test_a_bad_row_of_libffm_is_named(tmp_path: Path, line: str, column: int, words: str) -> None:
    path = write(tmp_path / "a", f"1 1:1:1\n{line}\n0 1:2:1\n")
    with pytest.raises(DataError) as error:
        run(tmp_path, path, index_base="1")
    assert f"row 2, column {column}: " in error.value.message
    assert words in error.value.message
    assert rows_of(run(tmp_path, path, index_base="1", skip_bad_rows=1).dataset) == [(1, {0: 1.0}), (0, {1: 1.0})]


def test_rows_without_labels_begin_with_a_nonzero() -> None:
    text = b"3:0.5 7:2 # why\n\n1 2:1\n1:1\n"
    parsed = Libsvm(None, 1, labelled=False).parse(chunk_of(text_of(text)), 9)
    assert rows_of_batch(parsed.batch) == [(0, {2: 0.5, 6: 2.0}), (0, {0: 1.0})]
    assert parsed.rows.tolist() == [1, 4]
    assert [(bad.row, bad.problem) for bad in parsed.bad] == [(3, "`1` is not `index:value`")]


@pytest.mark.parametrize(
    ("text", "weighted", "fields", "expected"),
    [
        ("1 3:1\n", False, (), True),
        ("+1\n", False, (), True),
        ("1:0.5 3:1\n", False, (), False),
        ("1:0.5 3:1\n", True, (), True),
        ("1:0.5 3:1\n4:1\n", True, (), False),
        ("0:1:1 1:2:1\n", True, None, False),
        ("1 0:1:1\n", False, None, True),
    ],
)
def test_whether_rows_to_score_have_labels(text: str, weighted: bool, fields: Any, expected: bool) -> None:
    config = PrepareConfig(sources=[], out="", weighted=weighted)
    assert has_labels(text_of(text.encode()), config, fields) == expected
