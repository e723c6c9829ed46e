from __future__ import annotations

import contextlib
import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.data.prepare_settings import PrepareConfig
from paceline.data.sources import columnar, table_process
from paceline.data.sources import files as sources
from paceline.data.sources.cells import read_numbers
from paceline.data.sources.csv_text import Csv, Header, Lines
from paceline.data.sources.table_columns import Roles, TableColumns
from paceline.data.sparse.names import NamesInfo
from paceline.errors import ConfigError, DataError
from tests.data.inputs import chunk_of, rows_of, rows_of_batch, run, write
from tests.kernels.test_hashing import reference

BITS = 12


def write_parquet(path: Path, table: Any) -> Path:
    pa.parquet.write_table(table, path, row_group_size=2)
    return path


def write_feather(path: Path, table: Any) -> Path:
    pa.feather.write_feather(table, path)
    return path


def write_stream(path: Path, table: Any) -> Path:
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return path


def write_compressed_stream(path: Path, table: Any) -> Path:
    write_stream(path, table)
    return write(path, gzip.compress(path.read_bytes()))


def write_csv(path: Path, table: Any) -> Path:
    columns = table.to_pydict()
    lines = [",".join(columns)]
    for i in range(table.num_rows):
        cells = [columns[name][i] for name in columns]
        lines.append(",".join("" if cell is None else str(int(cell) if cell is True else cell) for cell in cells))
    return write(path, "\n".join(lines))


TABLE = pa.table(
    {
        "age": pa.array([30, None, 0, -2], pa.int16()),
        "site": pa.array(["a", "", None, "ü"]),
        "label": pa.array([1, 0, 1, 0]),
        "price": pa.array([0.5, 1e-3, None, 7.0]),
        "app": pa.array(["x", "y", "x", None]).dictionary_encode(),
        "seen": pa.array([True, False, None, True]),
    }
)


def text_key(column: str, text: str) -> int:
    return 3 + reference(column, text.encode()) % (1 << BITS)


EXPECTED = [
    (1, {0: 30.0, text_key("site", "a"): 1.0, 1: 0.5, text_key("app", "x"): 1.0, 2: 1.0}),
    (0, {1: float(np.float32(1e-3)), text_key("app", "y"): 1.0}),
    (1, {text_key("app", "x"): 1.0}),
    (0, {0: -2.0, text_key("site", "ü"): 1.0, 1: 7.0, 2: 1.0}),
]

WRITERS = [write_parquet, write_feather, write_stream, write_compressed_stream]


@pytest.mark.parametrize("writer", WRITERS)
def test_typed_tables(tmp_path: Path, writer: Any) -> None:
    made = run(tmp_path, writer(tmp_path / "a", TABLE), hash_bits=BITS)
    assert rows_of(made.dataset) == EXPECTED
    assert made.dataset.features == 3 + 2**BITS


def test_csv_gives_the_same_rows(tmp_path: Path) -> None:
    table = TABLE.set_column(5, "seen", pa.array([1, 0, None, 1]))
    assert rows_of(run(tmp_path, write_csv(tmp_path / "a.csv", table), hash_bits=BITS).dataset) == EXPECTED


def test_pieces_of_any_size_give_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_process, "CHUNK_CELLS", 6)
    monkeypatch.setattr(sources, "CHUNK_BYTES", 30)
    for writer in WRITERS:
        path = writer(tmp_path / writer.__name__, TABLE)
        assert rows_of(run(tmp_path, path, path, hash_bits=BITS).dataset) == EXPECTED * 2
    path = write_csv(tmp_path / "a.csv", TABLE.set_column(5, "seen", pa.array([1, 0, None, 1])))
    assert rows_of(run(tmp_path, path, path, hash_bits=BITS).dataset) == EXPECTED * 2


def test_csv_quotes_separators_blank_lines_and_a_byte_order_mark(tmp_path: Path) -> None:
    text = '\ufeff"label";"a;b";n\r\n1;"x;""y""";2\r\n\r\n-1;;1e2\r\n'
    made = run(tmp_path, write(tmp_path / "a.csv", text), hash_bits=BITS)
    key = 1 + reference("a;b", b'x;"y"') % 2**BITS
    assert rows_of(made.dataset) == [(1, {key: 1.0, 0: 2.0}), (0, {0: 100.0})]


def test_numbers_alone_need_no_hashing(tmp_path: Path) -> None:
    made = run(tmp_path, write(tmp_path / "a.csv", "y,a,b\n1,2,3\n0,4,5\n"), label="y")
    assert made.dataset.features == 2


@pytest.mark.parametrize(
    ("line", "column", "words"),
    [
        ("1,abc,x", "n", ["`abc`", "not a number"]),
        ("1,nan,x", "n", ["`nan`", "finite"]),
        ("1,1e39,x", "n", ["`1e39`", "finite"]),
        ("2,1,x", "label", ["`2`"]),
        ("yes,1,x", "label", ["`yes`"]),
        (",1,x", "label", ["no label"]),
        ("1,1", "the whole row", ["2 cells instead of 3", "`1,1`"]),
        ("1,1,x,y", "the whole row", ["4 cells instead of 3", "`1,1,x,y`"]),
    ],
)
def test_a_bad_cell_of_csv_is_named(tmp_path: Path, line: str, column: str, words: list[str]) -> None:
    first = "label,n,s\n" + "1,5,a\n" * 200_000  # more than what is looked at to find the kinds of columns
    path = write(tmp_path / "rows.csv", f"{first}\n{line}\n0,6,b\n")
    with pytest.raises(DataError) as error:
        run(tmp_path, path, hash_bits=BITS)
    for word in [str(path), "row 200003", column, *words]:
        assert word in error.value.message
    made = run(tmp_path, path, hash_bits=BITS, skip_bad_rows=1)
    assert (made.rows, made.bad_rows) == (200_001, 1)


def test_a_row_of_other_length_need_not_be_utf8(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"label,a\n1,x\n0,\xac\xff,3\n1,\xe9\n0,y\n")
    with pytest.raises(DataError, match="3 cells instead of 2"):
        run(tmp_path, path, hash_bits=BITS)
    made = run(tmp_path, path, hash_bits=BITS, skip_bad_rows=1)
    assert (made.rows, made.bad_rows) == (3, 1)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e39])
def test_a_bad_number_of_a_typed_table_is_named(tmp_path: Path, bad: float) -> None:
    table = pa.table({"label": [0, 1, 1], "x": [1.0, 2.0, bad]})
    path = write_parquet(tmp_path / "a.parquet", table)
    with pytest.raises(DataError, match=r"a.parquet`, row 3, column x: .* not a finite number"):
        run(tmp_path, path)
    assert run(tmp_path, path, skip_bad_rows=1).rows == 2


def test_nulls_in_the_label_are_bad(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", pa.table({"label": [0, None, 1], "x": [1, 2, 3]}))
    with pytest.raises(DataError, match="row 2, column label: no label"):
        run(tmp_path, path)


def test_other_columns_in_a_later_file_are_named(tmp_path: Path) -> None:
    first = pa.table({"label": [1], "a": [1], "b": ["x"]})
    for number, (second, words) in enumerate(
        [
            (pa.table({"label": [1], "a": [1]}), "b is missing"),
            (pa.table({"label": [1], "a": [1], "b": ["x"], "c": [1]}), "c is new"),
            (pa.table({"label": [1], "a": ["1"], "b": ["x"]}), "a is text instead of number"),
        ]
    ):
        paths = [write_parquet(tmp_path / f"{number}-{i}.parquet", table) for i, table in enumerate((first, second))]
        with pytest.raises(DataError, match=words) as error:
            run(tmp_path, *paths)
        assert str(paths[1]) in error.value.message
    paths = [write(tmp_path / "a.csv", "label,a\n1,2\n"), write(tmp_path / "b.csv", "label,b\n1,2\n")]
    with pytest.raises(DataError, match="a is missing, b is new"):
        run(tmp_path, *paths)


def test_columns_may_come_in_another_order(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a.csv", "label,a,b\n1,2,3\n"), write(tmp_path / "b.csv", "b,label,a\n3,0,2\n")]
    assert rows_of(run(tmp_path, *paths).dataset) == [(1, {0: 2.0, 1: 3.0}), (0, {0: 2.0, 1: 3.0})]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (pa.table({"x": [1], "y": [2]}), "no label column `label`; it has x, y"),
        (pa.table({"label": [1]}), "no column besides the label"),
        (pa.table({"label": [1], "when": [{"a": 1}]}), "column when: the type is struct"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path: Path, table: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        run(tmp_path, write_parquet(tmp_path / "a.parquet", table))


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_damaged_tables_are_named(tmp_path: Path, name: str) -> None:
    whole = (write_parquet if name == "a.parquet" else write_feather)(tmp_path / name, TABLE).read_bytes()
    path = write(tmp_path / name, whole[: len(whole) // 2])
    with pytest.raises(DataError, match="cannot be read"):
        run(tmp_path, path)


@given(st.lists(st.one_of(st.text("0123456789.e-+ nainf", max_size=12), st.floats().map(repr)), max_size=30))
def test_cells_are_read_as_python_reads_them(cells: list[str]) -> None:
    found = read_numbers(pa.array([cell.encode() for cell in cells], pa.binary()))
    for i, cell in enumerate(cells):
        try:
            with np.errstate(over="ignore"):
                value = float(np.float32(float(cell)))
        except ValueError:
            assert i in found.problems or not cell.strip(" ")
            continue
        assert (i in found.problems) == (not math.isfinite(value))
        if math.isfinite(value):
            assert float(np.float32(found.numbers[i])) == value


@given(st.binary(max_size=200))
def test_hostile_csv_parses_or_is_refused(data: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "a.csv", b"label,a,b\n1,2,3\n" + data)
        # Whatever the bytes are: rows, or an error that a person can read.
        with contextlib.suppress(DataError):
            assert run(Path(folder), path, hash_bits=BITS, skip_bad_rows=1000).rows >= 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('1,2,"a', 'a quote that is not closed in `1,2,"a`'),
        ('1,"2,a', "a quote that is not closed"),
        ('1,2,"a""', "a quote that is not closed"),
        ('1,2,"a"x', "text after a closing quote"),
        ("1,2,a\r0,3,b", "a carriage return"),
        ('1,2,"a\rb"', "a carriage return"),
    ],
)
@pytest.mark.parametrize("chunk_bytes", [12, 4 << 20])
def test_a_line_that_is_not_valid_csv_swallows_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, words: str, chunk_bytes: int
) -> None:
    monkeypatch.setattr(sources, "CHUNK_BYTES", chunk_bytes)
    path = write(tmp_path / "a.csv", f'label,x,c\n0,1,"b"\n{line}\n1,4,5" disk\n{line}\n\n0,7,"d ""e"""\r\n')
    with pytest.raises(DataError) as error:
        run(tmp_path, path, hash_bits=BITS)
    assert f"`{path}`, row 3, the line: {words}" in error.value.message
    with pytest.raises(DataError, match=r"row 5, the line: .*after 1 other"):
        run(tmp_path, path, hash_bits=BITS, skip_bad_rows=1)
    made = run(tmp_path, path, hash_bits=BITS, skip_bad_rows=2)
    assert made.bad_rows == 2
    keys = [1 + reference("c", text) % 2**BITS for text in (b"b", b'5" disk', b'd "e"')]
    assert rows_of(made.dataset) == [
        (0, {0: 1.0, keys[0]: 1.0}),
        (1, {0: 4.0, keys[1]: 1.0}),
        (0, {0: 7.0, keys[2]: 1.0}),
    ]


@pytest.mark.parametrize("content", ["label,x\r1,2\r0,3\r", 'label,"x\n1,2\n', 'label,"x"y\n1,2\n'])
def test_a_first_line_that_is_not_a_csv_header(tmp_path: Path, content: str) -> None:
    with pytest.raises(DataError, match=r"row 1: `label.*` is not a CSV header") as error:
        run(tmp_path, write(tmp_path / "a.csv", content))
    assert "\\r alone" in error.value.hint
    with pytest.raises(DataError, match="in an unknown format"):
        run(tmp_path, write(tmp_path / "a", content))


@given(st.lists(st.text('1,"ab\r;', max_size=8), max_size=8))
def test_no_line_of_csv_changes_what_the_next_one_is(lines: list[str]) -> None:
    """Between hostile lines stands a good one, which is always read, as a row of its own."""
    reading = Csv(TableColumns(Roles("label"), {"a": "text"}), PrepareConfig(sources=[], out="", hash_bits=BITS))
    text = "".join(f"{line}\n1,good\n" for line in lines).encode()
    parsed = reading.parse(chunk_of(Lines(Header(["label", "a"], ",", 0), np.frombuffer(text, np.uint8), 0)), 100)
    assert parsed.num_numbered == 2 * len(lines)
    key = reference("a", b"good") % 2**BITS
    assert rows_of_batch(parsed.batch).count((1, {key: 1.0})) == len(lines)
    assert all(row.row % 2 == 1 for row in parsed.bad)
    assert parsed.batch.num_rows + len(parsed.bad) <= 2 * len(lines)


@pytest.mark.parametrize("writer", [write_parquet, write_feather])
def test_which_columns_are_numbers_is_said(tmp_path: Path, writer: Any) -> None:
    made = run(tmp_path, writer(tmp_path / "a", TABLE), hash_bits=BITS)
    assert made.notes == ("numeric columns: age, price, seen; text columns: site, app",)


def test_many_columns_are_said_in_short(tmp_path: Path) -> None:
    names = [f"n{i}" for i in range(12)]
    made = run(tmp_path, write(tmp_path / "a.csv", ",".join(["label", *names]) + "\n" + ",".join("1" * 13) + "\n"))
    assert made.notes == ("numeric columns: n0, n1, n2, n3, n4, n5, n6, n7, … (12 in all)",)


def test_names_are_for_as_many_columns_as_their_numbers_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of names has 16 bits per column. Beyond that, names would be those of other columns."""
    path = write(tmp_path / "rows.csv", "label,a,b,c,town\n1,1,2,3,Rome\n0,4,5,6,Oslo\n")
    monkeypatch.setattr(columnar, "MOST_FIELDS", 4)
    assert run(tmp_path, path).dataset.manifest.names.columns
    monkeypatch.setattr(columnar, "MOST_FIELDS", 3)
    prepared = run(tmp_path, path)
    assert "names of features are not kept: they are for at most 3 columns" in prepared.notes
    assert prepared.dataset.manifest.names == NamesInfo(numeric=("a", "b", "c"))


def test_a_csv_header_longer_than_the_first_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"column{i}" for i in range(100)]
    text = f"label,{','.join(names)}\n" + "1" + ",2.5" * 100 + "\n"
    monkeypatch.setattr(sources, "HEAD_BYTES", 200)
    made = run(tmp_path, write(tmp_path / "a.csv", text))
    assert made.dataset.manifest.source["columns"] == dict.fromkeys(names, "number")
    monkeypatch.setattr(sources, "LONGEST_ROW_BYTES", 400)
    with pytest.raises(DataError, match=r"the first line of `.*` \(in CSV, its header\) is longer than"):
        run(tmp_path, tmp_path / "a.csv")


WEIGHTED = pa.table({"label": [1, 0, 1], "w": [2.0, 0.25, 0.0], "x": [1.0, 2.0, 0.0], "s": ["a", None, "b"]})


@pytest.mark.parametrize("writer", [*WRITERS, write_csv])
def test_a_column_may_be_the_weight_of_rows_and_columns_may_be_fields(tmp_path: Path, writer: Any) -> None:
    path = writer(tmp_path / "a", WEIGHTED)
    dataset = run(tmp_path, path, path, weight="w", fields=True, hash_bits=BITS).dataset
    block = dataset.block("train", 0)
    assert block.weights is not None
    assert block.fields is not None
    assert block.weights.tolist() == [2, 0.25, 0] * 2
    assert block.fields.tolist() == [0, 1, 0, 1] * 2
    assert dataset.manifest.fields == ("x", "s")
    assert dataset.manifest.source["columns"] == {"x": "number", "s": "text"}
    assert (dataset.manifest.source["weight"], dataset.manifest.source["fields"]) == ("w", True)
    assert dataset.manifest.train.mean_weight == 0.75


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf, 1e39, None])
@pytest.mark.parametrize("writer", [write_parquet, write_csv])
def test_a_bad_weight_of_a_table_is_named(tmp_path: Path, writer: Any, weight: float | None) -> None:
    path = writer(tmp_path / "a", pa.table({"label": [1, 0], "w": pa.array([1.0, weight], pa.float64()), "x": [1, 2]}))
    number = 2 if writer is write_parquet else 3
    with pytest.raises(DataError, match=f"a`, row {number}, column w: ") as error:
        run(tmp_path, path, weight="w")
    assert "a weight is a finite number of at least 0" in error.value.hint
    assert run(tmp_path, path, weight="w", skip_bad_rows=1).rows == 1


def test_weight_columns_that_cannot_be(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a", WEIGHTED)
    with pytest.raises(DataError, match="has no weight column `wait`; it has label, w, x, s"):
        run(tmp_path, path, weight="wait")
    with pytest.raises(DataError, match="has no weight column `w`"):
        run(tmp_path, path, write_csv(tmp_path / "b", WEIGHTED.drop_columns(["w"])), weight="w")
    with pytest.raises(DataError, match="no column besides the label and the weight"):
        run(tmp_path, write(tmp_path / "c", "label,w\n1,2\n"), weight="w")
    with pytest.raises(ConfigError, match="`weight` and `label` are both `w`"):
        run(tmp_path, path, weight="w", label="w")


def test_text_about_finite_things_is_not_a_number(tmp_path: Path) -> None:
    made = run(tmp_path, write(tmp_path / "a.csv", "label,s\n1,finite\n0,infinite\n"), hash_bits=BITS)
    assert made.notes == ("text columns: s",)
