"""Standard input is looked at and then read from its beginning, whatever comes in it."""

from __future__ import annotations

import gzip
import io
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from paceline.data.prepare import prepare
from paceline.data.prepare_settings import PrepareConfig
from paceline.data.sources import standard_input
from paceline.data.sources.files import cut_at_lines, find_sources, read_head
from paceline.data.sources.standard_input import StandardInput
from paceline.errors import ConfigError, DataError
from tests.data.inputs import rows_of

LINES = b"1 1:0.5 3:2\n-1 2:1\n"


def stream_in(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    class Input:
        buffer = io.BytesIO(content)

    monkeypatch.setattr(sys, "stdin", Input())


def prepared(out: Path, **settings: Any) -> list[tuple[int, dict[int, float]]]:
    return rows_of(prepare(PrepareConfig(sources=["-"], out=str(out), **settings), lambda _: None).dataset)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_text_is_recognised_and_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pack: Any) -> None:
    stream_in(monkeypatch, pack(LINES))
    assert prepared(tmp_path / "out") == [(1, {0: 0.5, 2: 2.0}), (0, {1: 1.0})]


def test_a_table_is_copied_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table({"label": [1, 0], "x": [0.5, 2.0]}), tmp_path / "rows")
    stream_in(monkeypatch, (tmp_path / "rows").read_bytes())
    assert prepared(tmp_path / "out") == [(1, {0: 0.5}), (0, {0: 2.0})]


def test_a_bad_row_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stream_in(monkeypatch, LINES + b"what\n")
    with pytest.raises(DataError, match="`standard input`, row 3, column 1"):
        prepared(tmp_path / "out", format="libsvm")
    stream_in(monkeypatch, b"")
    with pytest.raises(DataError, match="`standard input` is empty"):
        prepared(tmp_path / "out")


def test_it_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="standard input, `-`, is named twice"):
        find_sources(["-", "-"])
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(Exception, match="there is no standard input"):
        find_sources(["-"])


def test_what_was_read_is_kept_until_it_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standard_input, "MOST_KEPT", 100)
    stream_in(monkeypatch, LINES * 50)
    (source,) = find_sources(["-"])
    assert read_head(source, 30).tobytes() == (LINES * 2)[:30]
    assert b"".join(chunk.content.tobytes() for chunk in cut_at_lines(source)) == LINES * 50
    with pytest.raises(DataError, match="`standard input` cannot be read: it can be read only once"):
        read_head(source, 30)
    assert StandardInput(io.BytesIO(b"abc")).begins_with(b"x", b"ab")
