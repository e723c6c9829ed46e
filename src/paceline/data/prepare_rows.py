"""How are the rows of text, records and tables read?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paceline.data.blocks.dataset import Split
from paceline.data.blocks.writer import DatasetWriter
from paceline.data.labels import first_negatives
from paceline.data.pipeline import parse_in_order
from paceline.data.prepare_settings import PrepareConfig
from paceline.data.sources.files import Chunk, Source
from paceline.data.sources.formats import ROW_FORMATS
from paceline.data.sources.parsed import Parsed
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.dataset import SparseDataset, sparse_writer
from paceline.errors import ConfigError, DataError, counted


class RawRows:
    """Files of rows. The first training file that is not empty says what a format leaves to be found out."""

    def __init__(self, config: PrepareConfig, name: str, train: list[Source], test: list[Source]) -> None:
        self._config = config
        self._reading = ROW_FORMATS[name](next(source for source in train if source.num_bytes != 0), config)
        if config.features is not None and config.features != self._reading.features:
            raise ConfigError(
                f"`features` is {config.features}, but this {name} input has {self._reading.features}",
                "leave --features out; --hash-bits says how many keys strings are hashed into",
            )
        self.files: dict[Split, list[Source]] = {"train": train, "test": test}
        labels = {"labels": config.labels} if config.labels != "two-classes" else {}
        self.settings: dict[str, Any] = {**labels, **self._reading.settings}
        self.notes = self._reading.notes
        self.bad_rows = 0
        self._first_negatives: dict[int, str] = {}

    def writer(self, source: dict[str, Any]) -> DatasetWriter[Batch, SparseDataset]:
        features, labels = self._reading.features, self._config.labels
        return sparse_writer(self._config.out, features=features, source=source, labels=labels)

    def read(self, split: Split) -> Iterator[tuple[Batch, int]]:
        """The rows of all files, in order, with labels as a dataset stores them."""
        chunks = (chunk for source in self.files[split] for chunk in self._reading.chunks(source))
        place: Source | None = None
        for chunk, parsed, negatives in parse_in_order(chunks, self._parse):
            if chunk.source is not place:
                place, numbered, bytes_before = chunk.source, 0, 0
            self._check(chunk.source, numbered, parsed, negatives)
            numbered += parsed.num_numbered
            yield parsed.batch, chunk.bytes_read - bytes_before
            bytes_before = chunk.bytes_read

    def _parse(self, chunk: Chunk[Any]) -> tuple[Chunk[None], Parsed, dict[int, int]]:
        """The rows of a chunk, and the first of them with the label 0 and with -1. Runs in several threads at once."""
        most_bad, labels = self._config.skip_bad_rows + 1, self._config.labels
        parsed = self._reading.parse(chunk, most_bad)
        negatives = first_negatives(parsed.batch.labels, parsed.rows) if labels == "two-classes" else {}
        # The text or table is freed as soon as it is parsed, not when its turn comes.
        freed = Chunk(chunk.source, None, chunk.start, chunk.bytes_read)
        return freed, parsed.with_labels(labels, self._reading.label_column, most_bad), negatives

    def _check(self, source: Source, numbered: int, parsed: Parsed, negatives: dict[int, int]) -> None:
        """Raise for the first row of a chunk that cannot be tolerated; `numbered` rows of its file come before it."""
        errors: list[tuple[int, DataError]] = []
        tolerated = self._config.skip_bad_rows - self.bad_rows
        if len(parsed.bad) > tolerated:
            row, column, problem, hint = parsed.bad[tolerated]
            others = self._config.skip_bad_rows
            limit = f" (after {counted(others, 'other bad row')})" if others else ""
            where = f"`{source.name}`, row {numbered + row}, {column}"
            hint = f"{hint}; --skip-bad-rows N skips up to N such rows"
            errors.append((row, DataError(f"{where}: {problem}{limit}", hint)))
        new = {label: row for label, row in negatives.items() if label not in self._first_negatives}
        self._first_negatives |= {label: f"`{source.name}`, row {numbered + row}" for label, row in new.items()}
        if len(self._first_negatives) == 2:  # then it is unclear which is the negative class
            mixed = f"labels are mixed: 0 in {self._first_negatives[0]}, -1 in {self._first_negatives[-1]}"
            error = DataError(mixed, "use either 0 and 1 or -1 and +1, the same in all files")
            errors.append((max(new.values(), default=0), error))
        if errors:
            raise min(errors, key=lambda error: error[0])[1]
        self.bad_rows += len(parsed.bad)
