"""How is CSV read, so that a bad cell can be named?

The first line names the columns; the separator is whichever of `,` tab `;` and `|` occurs most often in it. Cells are
read as text and turned into numbers here. A column is numeric if the first megabyte has a number in it and nothing but
numbers and blanks. A cell may be quoted but must not hold a line break: every line is a row, and a line with an open
quote is a bad row. Blank lines are skipped. The header is row 1.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
from numpy.typing import NDArray

from paceline.data.limits import ColumnKind
from paceline.data.prepare_settings import PrepareConfig
from paceline.data.sources.cells import are_names, are_numbers
from paceline.data.sources.columnar import Columnar
from paceline.data.sources.files import Chunk, Source, cut_at_lines, first_lines
from paceline.data.sources.parsed import BadRow, Parsed, shown
from paceline.data.sources.table_columns import (
    Roles,
    TableColumns,
    chosen_columns,
    left_out,
    require_columns,
    require_roles,
)
from paceline.errors import DataError
from paceline.kernels.columns import LONE_RETURN, QUOTE_OPEN, TEXT_AFTER_QUOTE, check_quotes
from paceline.kernels.text import NEWLINE, QUOTE, RETURN

SEPARATORS = (",", "\t", ";", "|")
QUOTE_PROBLEMS = {
    QUOTE_OPEN: ("a quote that is not closed", "cells hold no line breaks; a quote within quotes is written twice"),
    TEXT_AFTER_QUOTE: ("text after a closing quote", "quote cells as a whole; a quote within is written twice"),
    LONE_RETURN: ("a carriage return", "lines end with \\n or \\r\\n, and cells hold no line breaks"),
}

Text = NDArray[np.uint8]


class Header(NamedTuple):
    """The first line of a file: the columns in their order, the separator, and its length in bytes."""

    names: list[str]
    separator: str
    num_bytes: int


class Lines(NamedTuple):
    """Whole lines of a file, its header, and how many lines of the chunk came before them (the header, or none)."""

    header: Header
    text: Text
    before: int


class Csv(Columnar):
    """CSV text with a header."""

    def __init__(self, columns: TableColumns, config: PrepareConfig, *, named_labels: bool = False) -> None:
        self._config = config
        super().__init__(columns, config, named_labels=named_labels)

    def chunks(self, source: Source) -> Iterator[Chunk[Lines]]:
        header: Header | None = None
        for chunk in cut_at_lines(source):
            text = chunk.content
            if header is None:
                header = _require_header(source, text)
                require_roles(header.names, self.columns.roles, source)
                without = left_out(self.columns.roles, self._config)
                known = {name: kind for name, kind in self.columns.kinds.items() if kind != "list"}
                kinds = {name: known.get(name, "text") for name in header.names if name not in without}
                require_columns(self.columns, kinds, self._config, source)
                yield Chunk(source, Lines(header, text[header.num_bytes :], 1), 0, chunk.bytes_read)
            else:
                yield Chunk(source, Lines(header, text, 0), chunk.start, chunk.bytes_read)

    def parse(self, chunk: Chunk[Lines], most_bad: int) -> Parsed:
        header, text, before = chunk.content
        table, numbers, bad = _read_cells(chunk.source, header, text)
        parsed = self.rows(table, numbers + before, most_bad)
        bad = [row._replace(row=row.row + before) for row in bad]
        bad = sorted(parsed.bad + bad, key=lambda row: row.row)[:most_bad]
        return parsed._replace(bad=bad, num_numbered=int((text == NEWLINE).sum()) + before)


def read_header(text: Text) -> Header | None:
    """The columns that the first line names, or None if it cannot be split into cells."""
    line = text.tobytes().partition(b"\n")[0] + b"\n"
    shown_line = line.decode("utf-8-sig", errors="backslashreplace").rstrip("\r\n")
    separator = max(SEPARATORS, key=shown_line.count)
    if _quote_problems(np.frombuffer(shown_line.encode() + b"\n", np.uint8), separator).any():
        return None
    try:
        names = next(csv.reader([shown_line], delimiter=separator), [])
    except csv.Error:
        return None
    return Header([name.strip() for name in names], separator, len(line))


def _require_header(source: Source, text: Text) -> Header:
    header = read_header(text)
    if header is None:
        line = text[: 1 << 12].tobytes().partition(b"\n")[0]
        raise DataError(
            f"`{source.name}`, row 1: {shown(line)} is not a CSV header",
            "check quotes and --format; lines end with \\n or \\r\\n, not with \\r alone",
        )
    return header


def _quote_problems(text: Text, separator: str) -> NDArray[np.uint8]:
    """For each line 0, or why it cannot be split into cells."""
    problems = np.zeros(int((text == NEWLINE).sum()), np.uint8)
    if (text == QUOTE).any() or (text == RETURN).any():
        check_quotes(text, ord(separator), problems)
    return problems


def _blank_out(text: Text, lines: list[int]) -> tuple[Text, list[bytes]]:
    """The text with some lines (from 0) emptied, and what was in them."""
    ends = np.flatnonzero(text == NEWLINE)
    kept, removed, rest = [], [], 0
    for line in lines:
        start, end = int(ends[line - 1]) + 1 if line else 0, int(ends[line])
        removed.append(text[start:end].tobytes())
        kept.append(text[rest:start])
        rest = end
    return np.concatenate([*kept, text[rest:]]), removed


def _read_cells(source: Source, header: Header, text: Text) -> tuple[pa.RecordBatch, NDArray[np.int64], list[BadRow]]:
    """The cells of lines as text columns, the number (from 1) of the line of each row, and the lines left out."""
    if not len(text):
        return _record_batch(pa.schema(_types(header)).empty_table()), np.zeros(0, np.int64), []
    problems = _quote_problems(text, header.separator)
    bad: list[BadRow] = []
    if problems.any():
        lines = np.flatnonzero(problems).tolist()
        text, removed = _blank_out(text, lines)
        for line, content in zip(lines, removed, strict=True):
            problem, hint = QUOTE_PROBLEMS[int(problems[line])]
            bad.append(BadRow(line + 1, "the line", f"{problem} in {shown(content)}", hint))
    try:
        try:
            table = _parse(header, text)
        except pa.ArrowInvalid:
            text, wrong = _without_wrong_rows(header, text)
            bad += wrong
            table = _parse(header, text)
    except pa.ArrowInvalid as error:
        raise DataError(f"`{source.name}` is not valid CSV: {error}", "check quotes and separators") from None
    if table.num_rows != len(problems):
        raise DataError(
            f"`{source.name}` is not valid CSV: {len(problems)} lines hold {table.num_rows} rows",
            "check quotes and line ends",
        )
    numbers = np.arange(1, table.num_rows + 1)
    batch = _record_batch(table)
    filled = np.zeros(batch.num_rows, bool)
    for column in batch.columns:
        if filled.all():
            break
        filled |= pa.compute.binary_length(column).to_numpy() > 0
    batch = batch if filled.all() else batch.filter(pa.array(filled))
    return batch, numbers[filled], bad


def _types(header: Header) -> dict[str, pa.DataType]:
    return {name: pa.large_binary() for name in header.names}


def _parse(header: Header, text: Text | bytes, leave_out: Callable[[Any], str] | None = None) -> pa.Table:
    # One block on one thread: only then are rows numbered, and this already is one thread of several.
    return pa.csv.read_csv(
        pa.BufferReader(text),
        pa.csv.ReadOptions(column_names=header.names, use_threads=False, block_size=len(text) + 1),
        pa.csv.ParseOptions(delimiter=header.separator, ignore_empty_lines=False, invalid_row_handler=leave_out),
        pa.csv.ConvertOptions(column_types=_types(header), check_utf8=False),
    )


def _without_wrong_rows(header: Header, text: Text) -> tuple[Text, list[BadRow]]:
    """The text with lines emptied that have too few or too many cells, and these lines as bad rows."""
    found: list[Any] = []

    def leave_out(row: Any) -> str:
        found.append(row)
        return "skip"

    # Bytes as characters: pyarrow decodes rows that it leaves out, and prints a traceback if they are not UTF-8.
    table = _parse(header, text.tobytes().decode("latin-1").encode(), leave_out)
    if table.num_rows + len(found) != (text == NEWLINE).sum():
        return text, []
    kept, removed = _blank_out(text, [row.number - 1 for row in found])
    return kept, [
        _explain(row, len(header.names), line.rstrip(b"\r")) for row, line in zip(found, removed, strict=True)
    ]


def _record_batch(table: pa.Table) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], table.column_names)


def _explain(row: Any, num_columns: int, line: bytes) -> BadRow:
    return BadRow(
        row.number,
        "the whole row",
        f"{row.actual_columns} cells instead of {num_columns} in {shown(line)}",
        "every row has a cell for each column of the header; quote cells that hold the separator",
    )


def open_csv(source: Source, config: PrepareConfig) -> Csv:
    """CSV with the columns of this file: which are numeric and which text."""
    text = first_lines(source)
    header = _require_header(source, text)
    roles = Roles.of(config)
    require_roles(header.names, roles, source)
    table, _, _ = _read_cells(source, header, text[header.num_bytes :])
    natural: dict[str, ColumnKind | None] = {
        name: "number" if not config.columns and are_numbers(table.column(name)) else "text" for name in header.names
    }
    columns = chosen_columns(natural, roles, config, source).with_edges(config.bins, table)
    named = bool(roles.label) and config.labels != "numbers" and are_names(table.column(roles.label))
    return Csv(columns, config, named_labels=named)
