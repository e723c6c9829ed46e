"""How are Parquet and Arrow files cut into pieces?

Their columns have types; what becomes of them is in `columnar.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from paceline.data.sources.columnar import Columnar, TableColumns, columns_of, require_columns
from paceline.data.sources.files import Chunk, Source, open_for_seeking, open_mapped, open_stream, read_head
from paceline.data.sources.parsed import Parsed

CHUNK_CELLS = 1 << 20
CHUNK_BYTES = 8 << 20
READ_BYTES = 1 << 20
ARROW_FILE_MAGIC = b"ARROW1"

Piece = Chunk[pa.RecordBatch]


class Parquet(Columnar):
    """Parquet files, read a piece of a row group at a time."""

    def chunks(self, source: Source) -> Iterator[Piece]:
        with open_for_seeking(source) as raw, _open_parquet(raw) as file:
            require_columns(self.columns, columns_of(file.schema_arrow, self.columns.label, source), source)
            metadata = file.metadata
            num_bytes = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
            num_rows = rows_a_chunk(metadata.num_columns, num_bytes, metadata.num_rows)
            start = 0
            for batch in file.iter_batches(num_rows):
                start += batch.num_rows
                bytes_read = (source.num_bytes or 0) * start // metadata.num_rows
                yield Chunk(source, batch, start - batch.num_rows, bytes_read)

    def parse(self, chunk: Piece, most_bad: int) -> Parsed:
        return self.rows(chunk.content, np.arange(1, chunk.content.num_rows + 1), most_bad)


def columns_of_parquet(source: Source, label: str) -> TableColumns:
    with open_for_seeking(source) as raw, _open_parquet(raw) as file:
        return columns_of(file.schema_arrow, label, source)


def _open_parquet(raw: Any) -> Any:
    # Without buffer_size, or with pre_buffer, whole row groups would be held in memory.
    return pa.parquet.ParquetFile(raw, buffer_size=READ_BYTES, pre_buffer=False)


class Arrow(Columnar):
    """Arrow IPC files (Feather too) and streams."""

    def chunks(self, source: Source) -> Iterator[Piece]:
        start = 0
        for batch, bytes_read in _record_batches(source, self.columns):
            num_rows = rows_a_chunk(batch.num_columns, batch.nbytes, batch.num_rows)
            for first in range(0, batch.num_rows, num_rows):
                piece = batch.slice(first, num_rows)
                yield Chunk(source, piece, start + first, bytes_read)
            start += batch.num_rows

    def parse(self, chunk: Piece, most_bad: int) -> Parsed:
        return self.rows(chunk.content, np.arange(1, chunk.content.num_rows + 1), most_bad)


def _record_batches(source: Source, columns: TableColumns) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The record batches of a file or stream, and how much of it was read with each."""
    if _is_arrow_file(source):
        with open_mapped(source) as raw:
            reader = pa.ipc.open_file(raw)
            require_columns(columns, columns_of(reader.schema, columns.label, source), source)
            for i in range(reader.num_record_batches):
                yield reader.get_batch(i), (source.num_bytes or 0) * (i + 1) // reader.num_record_batches
    else:
        with open_stream(source) as stream:
            reader = pa.ipc.open_stream(stream.file)
            require_columns(columns, columns_of(reader.schema, columns.label, source), source)
            for batch in reader:
                yield batch, stream.bytes_read


def columns_of_arrow(source: Source, label: str) -> TableColumns:
    with open_stream(source) as stream:
        reader = pa.ipc.open_file(stream.file) if _is_arrow_file(source) else pa.ipc.open_stream(stream.file)
        return columns_of(reader.schema, label, source)


def _is_arrow_file(source: Source) -> bool:
    """Whether it can be read batch by batch in any order; otherwise it is a stream."""
    return read_head(source, len(ARROW_FILE_MAGIC)).tobytes() == ARROW_FILE_MAGIC


def rows_a_chunk(num_columns: int, num_bytes: int, num_rows: int) -> int:
    """How many rows of a table make a chunk of bounded size."""
    bytes_a_row = max(1, num_bytes // max(1, num_rows))
    return max(1, min(CHUNK_CELLS // num_columns, CHUNK_BYTES // bytes_a_row))
