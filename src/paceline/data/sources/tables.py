"""How do Parquet and Arrow files become rows?

Their columns have types; what becomes of them is in `columnar.py`. How they are read is in `table_process.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from paceline.data.prepare_settings import PrepareConfig
from paceline.data.sources.columnar import Columnar, columns_of, require_columns
from paceline.data.sources.files import Chunk, Source
from paceline.data.sources.parsed import Parsed
from paceline.data.sources.table_process import TableProcess


class Tables(Columnar):
    """Files of tables with the columns of the first, read by a process that ends with this object."""

    def __init__(self, process: TableProcess, first: Source, config: PrepareConfig) -> None:
        self._process = process
        weakref.finalize(self, process.close)
        super().__init__(columns_of(process.read_schema(first), config.label, first), config.hash_bits)

    def chunks(self, source: Source) -> Iterator[Chunk[pa.RecordBatch]]:
        answer = self._process.read(source)
        require_columns(self.columns, columns_of(next(answer), self.columns.label, source), source)
        for rows, start, bytes_read in answer:
            yield Chunk(source, rows, start, bytes_read)

    def parse(self, chunk: Chunk[pa.RecordBatch], most_bad: int) -> Parsed:
        return self.rows(chunk.content, np.arange(1, chunk.content.num_rows + 1), most_bad)


def open_parquet(source: Source, config: PrepareConfig) -> Tables:
    return Tables(TableProcess("parquet"), source, config)


def open_arrow(source: Source, config: PrepareConfig) -> Tables:
    """Arrow IPC files (Feather too) and streams."""
    return Tables(TableProcess("arrow"), source, config)
