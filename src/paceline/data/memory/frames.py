"""How do tables in memory become rows? As those of files do: `data/sources/columnar.py` says what columns mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, count
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.fs

from paceline.data.memory.arrow_types import as_usable, usable
from paceline.data.memory.given import Given, column_of, is_lazy
from paceline.data.prepare_settings import PrepareConfig
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
from paceline.errors import UsageError

CHUNK_CELLS = 1 << 20
ROWS_COMPARED = 1000


class Table(NamedTuple):
    """A table that is read once: its schema, and its rows batch by batch, with labels and weights among its columns."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]

    def peek(self) -> tuple[pa.RecordBatch | None, Table]:
        """The first batch, and the whole table."""
        first = next(self.batches, None)
        return first, self._replace(batches=chain([first] if first is not None else [], self.batches))


def roles_of(given: Given, columns: Sequence[str] = ()) -> Roles:
    """Which of the columns of a table labels and weights are, or which they become.

    >>> roles_of(Given(None, "clicked", [1.0, 2.0]), ["clicked", "weight"])
    Roles(label='clicked', weight='weight-2', id='')
    """
    label = _role(given.labels, "label", columns) or "label"
    return Roles(label, _role(given.weights, "weight", [*columns, label]))


def _role(values: Any, default: str, taken: Sequence[str]) -> str:
    if values is None or isinstance(values, str):
        return values or ""
    names = chain([_name(values, default), default], (f"{default}-{number}" for number in count(2)))
    return next(name for name in names if name not in taken)


def _name(values: Any, default: str) -> str:
    name = getattr(values, "name", None)
    return name if isinstance(name, str) and name else default


def open_first(given: Given) -> tuple[Table, Roles]:
    """A table as `open_table` opens it, and which of its columns labels and weights became."""
    table = _without_index(_read(given.features))
    roles = roles_of(given, table.schema.names)
    for values, default, what in ((given.labels, "label", "labels"), (given.weights, "weight", "weights")):
        if values is not None and not isinstance(values, str) and _name(values, default) in table.schema.names:
            table = _refuse_copy(table, _name(values, default), values, what)
    return _prepared(table, given, roles), roles


def _refuse_copy(table: Table, name: str, values: Any, what: str) -> Table:
    """The table; raises if its column of this name, which would be a feature, holds the labels or weights."""
    first, table = table.peek()
    if first is not None and first.num_rows:
        found = first.column(name).slice(0, ROWS_COMPARED)
        if found.to_pylist() == column_of(values, len(values), what).slice(0, len(found)).to_pylist():
            message = f"{what} are given as an array, and the table has a column `{name}` with the same values"
            raise UsageError(message, "drop the column, or give its name instead of the array")
    return table


def open_table(given: Given, roles: Roles) -> Table:
    """A table of any kind with Arrow's types, and with labels and weights as columns."""
    return _prepared(_without_index(_read(given.features)), given, roles)


def _prepared(table: Table, given: Given, roles: Roles) -> Table:
    table = _with_labels(table, given, roles)
    schema = pa.schema([field.with_type(usable(field.type)) for field in table.schema])
    return Table(schema, (_cast(batch, schema) for batch in table.batches))


def _read(data: Any) -> Table:
    if is_lazy(data):
        data = data.collect()
    try:
        if hasattr(data, "__arrow_c_stream__"):
            reader = pa.RecordBatchReader.from_stream(data)
            return Table(reader.schema, iter(reader))
        batch = pa.record_batch(data)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        said, hint = "; ".join(map(str, error.args)), "columns have distinct names, and cells of one type"
        if "Sparse pandas data" in said:
            hint = "give a matrix: (frame.sparse.to_coo(), y)"
        raise UsageError(f"a {type(data).__name__} is not a table: {said}", hint) from None
    return Table(batch.schema, iter([batch]))


def _without_index(table: Table) -> Table:
    """Frames of pandas bring their index along; it says which row is which, and nothing to learn from."""
    known = (table.schema.pandas_metadata or {}).get("index_columns", [])
    kept = [name for name in table.schema.names if name not in [index for index in known if isinstance(index, str)]]
    if len(kept) == len(table.schema.names):
        return table
    fields = [table.schema.field(name) for name in kept]
    return Table(pa.schema(fields), (batch.select(kept) for batch in table.batches))


def _with_labels(table: Table, given: Given, roles: Roles) -> Table:
    """The table with columns of labels and weights, where these are arrays."""
    for name, values, what in ((roles.label, given.labels, "labels"), (roles.weight, given.weights, "weights")):
        if values is None or isinstance(values, str):
            continue
        if name in table.schema.names:
            raise UsageError(f"{what} are given as an array, and the table has a column `{name}`", "drop the column")
        column = column_of(values, len(values), what)
        appended = table.schema.append(pa.field(name, column.type))
        table = Table(appended, _appended(table.batches, appended, column, what))
    return table


def _appended(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, column: pa.Array, what: str
) -> Iterator[pa.RecordBatch]:
    start = 0
    for batch in batches:
        part = column.slice(start, batch.num_rows)
        start += batch.num_rows
        if len(part) < batch.num_rows:
            break
        yield pa.RecordBatch.from_arrays([*batch.columns, part], schema=schema)
    if start != len(column):
        raise UsageError(
            f"the table does not have as many rows as there are {what}, {len(column):,}", "give one per row"
        )


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        as_usable(column, field.type, f"column {field.name}")
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class Frames(Columnar):
    """A `Format` of tables with the columns of the first, of which `head` has the first rows."""

    def __init__(
        self, first: Table, roles: Roles, tables: dict[str, Iterator[Table]], config: PrepareConfig, *,
        named_labels: bool, head: pa.RecordBatch | None = None,
    ) -> None:  # fmt: skip
        self._tables = tables
        source = Source("the table", pa.fs.LocalFileSystem(), "", None)
        head, self._config = first.schema.empty_table() if head is None else head, config
        columns = columns_of(first.schema, roles, config, source).with_edges(config.bins, head)
        super().__init__(columns, config, named_labels=named_labels)
        self._chunk_rows = max(1, CHUNK_CELLS // max(1, len(columns.kinds)))

    def chunks(self, source: Source) -> Iterator[Chunk[pa.RecordBatch]]:
        start = 0
        for table in self._tables[source.name]:
            head, table = table.peek()
            blank = [] if head is None else blank_columns(self.columns, head)
            require_schema(self.columns, without_types(table.schema, blank), self._config, source)
            for batch in table.batches:
                rows = without_cells(batch, blank, source)
                for first in range(0, rows.num_rows, self._chunk_rows):
                    part = rows.slice(first, self._chunk_rows)
                    yield Chunk(source, part, start, 0)
                    start += part.num_rows

    def parse(self, chunk: Chunk[pa.RecordBatch], most_bad: int) -> Parsed:
        return self.rows(chunk.content, np.arange(1, chunk.content.num_rows + 1), most_bad)
