"""How are Parquet and Arrow files cut into pieces?

Their columns have types; what becomes of them is in `columnar.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from paceline.data.prepare_settings import PrepareConfig
from paceline.data.sources.columnar import Columnar, TableColumns, columns_of, require_columns
from paceline.data.sources.files import Chunk, Source, open_for_seeking, open_mapped, open_stream, read_head
from paceline.data.sources.parsed import Parsed

CHUNK_CELLS = 1 << 20
CHUNK_BYTES = 8 << 20
READ_BYTES = 1 << 20
ARROW_FILE_MAGIC = b"ARROW1"

Piece = Chunk[pa.RecordBatch]


class Tables(Columnar):
    """Files of tables; `cut` reads the pieces of a file, after a check of its columns."""

    def __init__(self, columns: TableColumns, hash_bits: int, cut: Callable[[Source, TableColumns], Iterator[Piece]]):
        super().__init__(columns, hash_bits)
        self._cut = cut

    def chunks(self, source: Source) -> Iterator[Piece]:
        return self._cut(source, self.columns)

    def parse(self, chunk: Piece, most_bad: int) -> Parsed:
        return self.rows(chunk.content, np.arange(1, chunk.content.num_rows + 1), most_bad)


def open_parquet(source: Source, config: PrepareConfig) -> Tables:
    with _opened_parquet(source) as file:
        return Tables(columns_of(file.schema_arrow, config.label, source), config.hash_bits, _cut_parquet)


@contextmanager
def _opened_parquet(source: Source) -> Iterator[Any]:
    # Without buffer_size, or with pre_buffer, whole row groups would be held in memory.
    with open_for_seeking(source) as raw, pa.parquet.ParquetFile(raw, buffer_size=READ_BYTES, pre_buffer=False) as file:
        yield file


def _cut_parquet(source: Source, columns: TableColumns) -> Iterator[Piece]:
    """Pieces of row groups."""
    with _opened_parquet(source) as file:
        require_columns(columns, columns_of(file.schema_arrow, columns.label, source), source)
        metadata = file.metadata
        num_bytes = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
        start = 0
        for batch in file.iter_batches(rows_per_chunk(metadata.num_columns, num_bytes, metadata.num_rows)):
            start += batch.num_rows
            bytes_read = (source.num_bytes or 0) * start // metadata.num_rows
            yield Chunk(source, batch, start - batch.num_rows, bytes_read)


def open_arrow(source: Source, config: PrepareConfig) -> Tables:
    """Arrow IPC files (Feather too) and streams."""
    with open_stream(source) as stream:
        reader = pa.ipc.open_file(stream.file) if _is_arrow_file(source) else pa.ipc.open_stream(stream.file)
        return Tables(columns_of(reader.schema, config.label, source), config.hash_bits, _cut_arrow)


def _cut_arrow(source: Source, columns: TableColumns) -> Iterator[Piece]:
    """Pieces of record batches."""
    start = 0
    for batch, bytes_read in _record_batches(source, columns):
        num_rows = rows_per_chunk(batch.num_columns, batch.nbytes, batch.num_rows)
        for first in range(0, batch.num_rows, num_rows):
            yield Chunk(source, batch.slice(first, num_rows), start + first, bytes_read)
        start += batch.num_rows


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


def _is_arrow_file(source: Source) -> bool:
    """Whether it can be read batch by batch in any order; otherwise it is a stream."""
    return read_head(source, len(ARROW_FILE_MAGIC)).tobytes() == ARROW_FILE_MAGIC


def rows_per_chunk(num_columns: int, num_bytes: int, num_rows: int) -> int:
    """The number of rows in a chunk of bounded size."""
    row_bytes = max(1, num_bytes // max(1, num_rows))
    return max(1, min(CHUNK_CELLS // num_columns, CHUNK_BYTES // row_bytes))
