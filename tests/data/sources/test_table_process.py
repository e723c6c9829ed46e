"""Hostile Parquet and Arrow files end in one line, whatever pyarrow does with them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest

from paceline.data.sources import table_process
from paceline.data.sources.table_process import TableProcess
from paceline.errors import DataError
from tests.data.inputs import rows_of, run, source_of, write

TEXT = pa.table({"label": [1, 0, 1], "site": ["abc", "defg", "h"]})


def write_arrow(path: Path, table: pa.Table) -> Path:
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    return path


def test_offsets_outside_of_the_text_are_refused(tmp_path: Path) -> None:
    """Arrow reads such a file without complaint, and compiled loops would read anywhere."""
    path = write_arrow(tmp_path / "a.arrow", TEXT)
    offsets = b"".join(number.to_bytes(4, "little") for number in (0, 3, 7, 8))
    content = path.read_bytes()
    assert content.count(offsets) == 1
    write(path, content.replace(offsets, offsets[:4] + (1 << 30).to_bytes(4, "little") + offsets[8:]))
    with pytest.raises(DataError, match=r"a.arrow` cannot be read: ArrowInvalid: .*offset") as error:
        run(tmp_path, path)
    assert len(error.value.message.splitlines()) == 1


@pytest.mark.parametrize("content", [b"ARROW1" + bytes(50), b"\xff\xff\xff\xff" + bytes(50)])
def test_a_later_file_that_cannot_be_opened_is_named(tmp_path: Path, content: bytes) -> None:
    good, bad = write_arrow(tmp_path / "a.arrow", TEXT), write(tmp_path / "b.arrow", content)
    with pytest.raises(DataError, match=r"b.arrow` cannot be read"):
        run(tmp_path, good, bad)


def test_a_crash_of_the_reader_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_arrow(tmp_path / "a.arrow", TEXT)
    started = table_process._start

    def start() -> Any:
        process = started()
        os.kill(process.pid, signal.SIGSEGV)
        return process

    monkeypatch.setattr(table_process, "_start", start)
    with pytest.raises(DataError, match=r"a.arrow` cannot be read: pyarrow crashed on it \(SIGSEGV\)"):
        run(tmp_path, path)


@pytest.mark.parametrize("encoding", ["dictionary", "DELTA_BYTE_ARRAY"])
def test_a_small_file_that_decodes_to_far_more(tmp_path: Path, encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows have one long text, which is stored once."""
    monkeypatch.setattr(table_process, "FREE_BYTES", 1 << 28)
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 50, pa.int32()), ["x" * 10_000_000])
    shared = encoding == "dictionary"
    table = pa.table({"label": [0, 1] * 25, "site": text if shared else text.dictionary_decode()})
    settings = {} if shared else {"column_encoding": {"site": encoding}}
    path = tmp_path / "a.parquet"
    pa.parquet.write_table(table, path, use_dictionary=shared, compression="zstd", store_schema=False, **settings)
    assert path.stat().st_size < 20_000
    with pytest.raises(DataError, match=r"a.parquet` needs more than 0.3 GiB of memory to be decoded, far more than"):
        run(tmp_path, path)


def test_memory_is_watched_while_pyarrow_copies_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A buffer that grows is there twice before pyarrow counts it."""
    used = iter([10, 20, 1 << 40])
    monkeypatch.setattr(table_process, "_own_bytes", lambda: next(used))
    monkeypatch.setattr(table_process, "WATCH_SECONDS", 0)
    codes = []

    def ends(code: int) -> NoReturn:
        codes.append(code)
        raise SystemExit

    monkeypatch.setattr(os, "_exit", ends)
    with pytest.raises(SystemExit):
        table_process._watch_memory([1 << 39])
    assert codes == [table_process.TOO_LARGE]


def test_a_long_text_that_many_rows_refer_to_costs_its_length_once(tmp_path: Path) -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, None] * 20_000, pa.int32()), ["x" * 10_000_000, "y"])
    label = pa.DictionaryArray.from_arrays(pa.array([0, 1, 1] * 20_000, pa.int8()), ["0", "1"])
    path = write_arrow(tmp_path / "a.arrow", pa.table({"label": label, "site": column}))
    made = run(tmp_path, path, hash_bits=8)
    assert rows_of(made.dataset) == rows_of(made.dataset)[:3] * 20_000
    assert [len(keys) for _, keys in rows_of(made.dataset)[:3]] == [1, 1, 0]


def test_an_unfinished_answer_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_process, "CHUNK_CELLS", 2)
    source = source_of(write_arrow(tmp_path / "a.arrow", TEXT))
    tables = TableProcess("arrow")
    assert tables.read_schema(source).names == ["label", "site"]
    process = tables._process
    assert process is not None
    answer = tables.read(source)
    next(answer)
    answer.close()
    assert process.returncode == -signal.SIGKILL
    assert [piece.start for piece in list(tables.read(source))[1:]] == [0, 1, 2]
    tables.close()


def test_the_reader_ends_when_nobody_asks_any_more(tmp_path: Path) -> None:
    tables = TableProcess("arrow")
    tables.read_schema(source_of(write_arrow(tmp_path / "a.arrow", TEXT)))
    process = tables._process
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()
    deadline = time.monotonic() + 10
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process.returncode == 0
    tables.close()


def test_text_need_not_be_utf_8(tmp_path: Path) -> None:
    latin = pa.array([b"caf\xe9", b"x"]).view(pa.string())
    made = run(tmp_path, write_arrow(tmp_path / "a.arrow", pa.table({"label": [1, 0], "site": latin})), hash_bits=8)
    assert made.rows == 2


def test_tens_of_thousands_of_csv_columns(tmp_path: Path) -> None:
    """A column named twice took 40 s to find."""
    names = [f"c{i}" for i in range(60_000)]
    cells = ",".join("1" for _ in names)
    began = time.monotonic()
    path = write(tmp_path / "a.csv", f"label,{','.join([*names, 'c59999'])}\n1,{cells},1\n")
    with pytest.raises(DataError, match="has the column `c59999` twice"):
        run(tmp_path, path)
    assert time.monotonic() - began < 15
