from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from paceline.data.prepare_settings import FORMATS, PrepareConfig
from paceline.data.sources.formats import ROW_FORMATS, recognise
from paceline.data.sources.image_formats import IMAGE_FORMATS
from paceline.errors import DataError
from tests.data.inputs import criteo_row, record, source_of, sparse_example, write

CONFIG = PrepareConfig(sources=[], out="")


@pytest.mark.parametrize(
    ("content", "name", "expected"),
    [
        ("1 1:1 2:0.5\n", "a", "libsvm"),
        ("# comment\n\n-1 qid:3 1:1 # x\n", "a.txt", "libsvm"),
        ("+1\n", "a", "libsvm"),
        ("1:0.5 1:1 2:0.5\n", "a", "libsvm"),
        ("1 0:1:1 1:2:0.5\n", "a", "libffm"),
        ("-1:2e-1 qid:3 0:1:1 # x\n", "a.txt", "libffm"),
        ("0:1:1 1:2:0.5\n", "a", "libffm"),
        (criteo_row("1", ["1"], ["a"]), "a", "criteo"),
        (criteo_row("1", ["1"], ["a"], ","), "day.csv", "criteo"),
        ("label,x\n1,2\n", "a", "csv"),
        ("x\tlabel\n1\t2\n", "a.txt", "csv"),
        ("x,y\n1,2\n", "a.csv", "csv"),
        (record(sparse_example(1, [1], [1.0])), "part-0", "tfrecord"),
        (record(sparse_example(1, [1], [1.0])) + b"rubbish", "part-0", "tfrecord"),
    ],
)
def test_formats_are_recognised(tmp_path: Path, content: str | bytes, name: str, expected: str) -> None:
    assert recognise(source_of(write(tmp_path / name, content)), CONFIG) == expected


def test_table_files_are_recognised(tmp_path: Path) -> None:
    table = pa.table({"label": [1]})
    pa.parquet.write_table(table, tmp_path / "p")
    pa.feather.write_feather(table, tmp_path / "f")
    assert recognise(source_of(tmp_path / "p"), CONFIG) == "parquet"
    assert recognise(source_of(tmp_path / "f"), CONFIG) == "arrow"


def test_what_is_not_recognised_says_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        recognise(source_of(write(tmp_path / "a.bin", b"\x00\x01\x02what is this")), CONFIG)
    assert str(tmp_path / "a.bin") in error.value.message
    assert "criteo|libsvm|libffm|tfrecord|parquet|arrow|csv" in error.value.hint


def test_an_empty_file_is_said_to_be_empty(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is empty"):
        recognise(source_of(write(tmp_path / "a", b"")), CONFIG)


def test_a_program_is_in_an_unknown_format(tmp_path: Path) -> None:
    content = b"\x7fELF\x02\x01" + bytes(range(256)) * 20
    with pytest.raises(DataError, match="in an unknown format"):
        recognise(source_of(write(tmp_path / "ls", content.replace(b"\n", b"\r"))), CONFIG)


def test_every_format_that_can_be_named_can_be_opened() -> None:
    assert [*ROW_FORMATS, *IMAGE_FORMATS] == list(FORMATS)
