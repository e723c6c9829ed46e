"""How do Parquet and Arrow files become rows?

Their columns have types; what becomes of them is in `columnar.py`. How they are read is in `table_process.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from itertools import chain

import numpy as np
import pyarrow as pa

from paceline.data.prepare_settings import PrepareConfig
from paceline.data.sources.cells import are_names, holds_text
from paceline.data.sources.columnar import Columnar
from paceline.data.sources.files import Chunk, Source
from paceline.data.sources.parsed import Parsed
from paceline.data.sources.table_columns import (
    Roles,
    blank_columns,
    columns_of,
    require_schema,
    without_cells,
    without_types,
)
from paceline.data.sources.table_process import TableProcess


class Tables(Columnar):
    """Files of tables with the columns of the first, read by a process that ends with this object."""

    def __init__(self, process: TableProcess, first: Source, config: PrepareConfig) -> None:
        self._process = process
        weakref.finalize(self, process.close)
        schema = process.read_schema(first)
        roles = Roles.of(config)
        columns = columns_of(schema, roles, config, first)
        read = roles.label and config.labels != "numbers"
        may_be_named = bool(read) and holds_text(schema.field(roles.label).type)
        unknown_edges = any(isinstance(bins, int) for bins in config.bins.values())
        rows = self._first_rows(first) if may_be_named or unknown_edges else schema.empty_table()
        named = may_be_named and are_names(rows.column(config.label))
        self._config = config
        super().__init__(columns.with_edges(config.bins, rows), config, named_labels=named)

    def _first_rows(self, first: Source) -> pa.RecordBatch | pa.Table:
        """The first rows of a file."""
        answer = self._process.read(first)
        schema, piece = next(answer), next(answer, None)
        answer.close()
        return schema.empty_table() if piece is None else piece.rows

    def chunks(self, source: Source) -> Iterator[Chunk[pa.RecordBatch]]:
        answer = self._process.read(source)
        schema, head = next(answer), next(answer, None)
        blank = [] if head is None else blank_columns(self.columns, head.rows)
        require_schema(self.columns, without_types(schema, blank), self._config, source)
        for rows, start, bytes_read in chain([] if head is None else [head], answer):
            yield Chunk(source, without_cells(rows, blank, source), start, bytes_read)

    def parse(self, chunk: Chunk[pa.RecordBatch], most_bad: int) -> Parsed:
        return self.rows(chunk.content, np.arange(1, chunk.content.num_rows + 1), most_bad)


def open_parquet(source: Source, config: PrepareConfig) -> Tables:
    return Tables(TableProcess("parquet"), source, config)


def open_arrow(source: Source, config: PrepareConfig) -> Tables:
    """Arrow IPC files (Feather too) and streams."""
    return Tables(TableProcess("arrow"), source, config)
