"""How are rows read that are to be scored? As the training data of a model was, but without labels.

Files are opened with the settings that the model has recorded. Chunks are parsed on all cores, and each is handed to a
function that scores it, so that no more than some chunks are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.fs
from numpy.typing import NDArray

from paceline.data.memory.frames import Frames, open_table
from paceline.data.memory.given import Given, refuse_mixture
from paceline.data.pipeline import parse_in_order
from paceline.data.preparation import BATCH, MATRIX, TABLE, Preparation, config_of, keys_of, refuse_other_preparation
from paceline.data.prepare_rows import bad_row_error
from paceline.data.prepare_settings import PrepareConfig, check_settings_for
from paceline.data.sources.files import Chunk, Source, find_sources, read_head
from paceline.data.sources.formats import ROW_FORMATS, WITHOUT_HEADER, recognise, refuse_other_formats
from paceline.data.sources.parsed import MOST_UNDECLARED, Format, Parsed
from paceline.data.sources.table_columns import Roles
from paceline.data.sparse.batch import Batch
from paceline.errors import ConfigError, DataError, UsageError, counted

MOST_NOTED = 5  # bad rows, or files
NO_ROWS = Batch.from_lists([], [], [])._replace(fields=np.zeros(0, np.uint16))
T = TypeVar("T")


class Scored(NamedTuple, Generic[T]):
    """Rows of a source: their numbers from 1, their ids if a column was named for them, and what was made of them."""

    source: Source
    rows: NDArray[Any]
    ids: Any
    made: T


class UnlabelledRows:
    """Rows of some sources, opened for scoring; without a format to read them in, there are none.

    `rows` counts those scored so far and `bad_rows` those skipped, of which `notes` name the first.
    """

    def __init__(self, reading: Format | None, sources: list[Source], skip_bad_rows: int = 0) -> None:
        self._reading = reading
        self._sources = sources
        self._skip = skip_bad_rows
        self.rows = self.bad_rows = 0
        self.notes: list[str] = []

    def scored(self, score: Callable[[Batch], T], *, threads: bool = True) -> Iterator[Scored[T]]:
        """All rows in order with what `score` makes of them, in several threads at once if `threads` allows it.

        If there are no rows, what it makes of none.
        """
        reading = self._reading

        def read(chunk: Chunk[Any]) -> tuple[Source, Parsed, T | None]:
            assert reading is not None
            parsed = reading.parse(chunk, self._skip + 1)
            if not threads:
                return chunk.source, parsed, None
            made = score(parsed.batch)
            return chunk.source, parsed._replace(batch=parsed.batch.slice(0, 0)), made

        chunks = (chunk for source in self._sources if reading for chunk in reading.chunks(source))
        place, numbered, is_empty = None, 0, True
        for source, parsed, made in parse_in_order(chunks, read):
            numbered = numbered if source is place else 0
            place = source
            self._check(source, numbered, parsed)
            found = score(parsed.batch) if made is None else made
            yield Scored(source, parsed.rows + numbered, parsed.ids, found)
            numbered, is_empty = numbered + parsed.num_numbered, False
            self.rows += len(parsed.rows)
        if is_empty:
            yield Scored(self._sources[0], np.zeros(0, np.int64), pa.nulls(0), score(NO_ROWS))

    def told(self) -> tuple[str, ...]:
        """What to tell the user about rows left out, or if there are none."""
        more = self.bad_rows - len(self.notes)
        found = [*self.notes, *([f"skipped {counted(more, 'other bad row')}"] if more else [])]
        names = ", ".join(f"`{source.name}`" for source in self._sources[:MOST_NOTED])
        return (*found, *([] if self.rows else [f"no rows in {names}: nothing is predicted"]))

    def _check(self, source: Source, numbered: int, parsed: Parsed) -> None:
        tolerated = self._skip - self.bad_rows
        if len(parsed.bad) > tolerated:
            raise bad_row_error(source, numbered, parsed.bad[tolerated], self._skip)
        for bad in parsed.bad[: MOST_NOTED - len(self.notes)]:
            self.notes.append(f"skipped `{source.name}`, row {numbered + bad.row}, {bad.column}: {bad.problem}")
        self.bad_rows += len(parsed.bad)


def open_files(trained: Preparation, sources: list[str], settings: Mapping[str, Any]) -> UnlabelledRows:
    """Files to score with a model that was trained on data prepared in this way."""
    recorded = trained.source.get("format")
    if recorded is None:
        raise UsageError("the model does not say how its data was prepared", "give a dataset: --data DIR")
    features = trained.features if trained.features > MOST_UNDECLARED and "index_base" in trained.source else None
    asked = {"format": "auto", **settings}
    config = config_of(trained.source, sources, **asked, labelled=False, features=features, weight="", names=False)
    files = find_sources(sources)
    first = next((source for source in files if source.num_bytes != 0 and len(read_head(source, 1))), None)
    if first is None and recorded in WITHOUT_HEADER:
        return UnlabelledRows(None, files)
    if first is None:
        raise DataError(f"the input is empty: `{files[0].name}`", "check how it was made")
    name = config.format if config.format != "auto" else recognise(first, config)
    refuse_other_preparation(Preparation({"format": recorded}, 0), Preparation({"format": name}, 0), first.name)
    if name not in ROW_FORMATS:
        raise UsageError(f"`{first.name}` is {name}; a model of {keys_of(recorded)} scores rows", "check --format")
    if recorded in (MATRIX, BATCH):
        message = f"the model was trained on a matrix, and `{first.name}` does not say where its indices count from"
        raise UsageError(message, "in Python, give `paceline.predict` a matrix")
    if config.id:
        check_settings_for(name, PrepareConfig(sources=sources, out="", id=config.id))
    if config.format == "auto":
        refuse_other_formats(name, files, config)
    reading = ROW_FORMATS[name](first, config)
    if reading.fields is not None:
        # All else is as in the training data, since it was read with its settings.
        refuse_other_preparation(trained, trained._replace(fields=reading.fields), first.name)
    return UnlabelledRows(reading, files, config.skip_bad_rows)


def open_tables(trained: Preparation, given: Iterator[Given], id_column: str = "") -> UnlabelledRows:
    """Tables in memory."""
    recorded = trained.source.get("format", TABLE)
    if keys_of(recorded) != keys_of(TABLE):
        hint = "give a matrix with the same columns" if recorded == MATRIX else "give rows of the same kind, or a file"
        raise UsageError(f"the model was trained on {keys_of(recorded)} ({recorded}), and a table has columns", hint)
    config = config_of(trained.source, ["memory"], labelled=False, weight="", id=id_column, names=False)
    roles = Roles.of(config)
    first = next(given)
    table = open_table(Given(first.features), roles)
    tables = (table if batch is first else _open(batch, roles) for batch in _chained(first, given))
    source = Source("the data", pa.fs.LocalFileSystem(), "", None)
    try:
        reading = Frames(table, roles, {source.name: tables}, config, named_labels=False)
    except ConfigError as error:
        raise DataError(error.message, error.hint) from None
    return UnlabelledRows(reading, [source])


def _open(batch: Given, roles: Roles) -> Any:
    refuse_mixture(batch, matrices=False)
    return open_table(Given(batch.features), roles)


def _chained(first: Given, others: Iterator[Given]) -> Iterator[Given]:
    yield first
    yield from others
