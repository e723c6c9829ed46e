"""How are the rows of text, records and tables read?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from paceline.data.blocks.dataset import Split
from paceline.data.blocks.writer import DatasetWriter
from paceline.data.labels import MOST_CLASSES, ClassNumbers, first_negatives
from paceline.data.pipeline import parse_in_order
from paceline.data.prepare_settings import PrepareConfig
from paceline.data.sources.files import Chunk, Source, find_sources
from paceline.data.sources.parsed import BadRow, Format, Parsed
from paceline.data.sources.weights import pair_up
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.dataset import ROOM_FOR_FILES, Room, SparseDataset, sparse_writer
from paceline.data.sparse.stray import LargestKeys
from paceline.errors import ConfigError, DataError, counted, printable


class RawRows:
    """Rows of one format: of files, or from memory."""

    def __init__(
        self, config: PrepareConfig, reading: Format, files: dict[Split, list[Source]], room: Room = ROOM_FOR_FILES
    ) -> None:
        self._config = config
        self._room = room
        self._reading = reading
        if config.features is not None and config.features != reading.features:
            raise ConfigError(
                f"`features` is {config.features}, but the input has {reading.features}",
                "leave --features out; --hash-bits says how many keys strings are hashed into",
            )
        self.files = files
        self._weights = pair_up(find_sources(config.weights), files)
        if self._weights and self._reading.weighted:
            raise ConfigError(f"`weights` is {config.weights}, but the rows have weights", "leave --weights out")
        labels = {"labels": config.labels} if config.labels != "two-classes" else {}
        fields = {"fields": True} if config.fields else {}
        weights = {"weights": config.weights} if config.weights else {}
        self.settings: dict[str, Any] = {**labels, **fields, **weights, **self._reading.settings}
        self.bad_rows = 0
        # Where features are declared, the user knows how many there are.
        self._largest = LargestKeys() if self._reading.features is None else None
        self._first_negatives: dict[int, str] = {}
        self._classes = ClassNumbers(2 if config.labels == "two-classes" else MOST_CLASSES)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know; when all rows are read, what was found in them, too."""
        names = self._reading.names
        found = names.notes if names is not None else ()
        if self._largest is not None and (stray := self._largest.stray) is not None:
            base = int(self._reading.settings.get("index_base", 0))
            found += (f"{stray.words(base)}: {stray.hint}",)
        return self._reading.notes + found

    def writer(self, source: dict[str, Any]) -> DatasetWriter[Batch, SparseDataset]:
        features, labels = self._reading.features, self._config.labels
        return sparse_writer(
            self._config.out, features=features, source=source, labels=labels, fields=self._reading.fields,
            class_names=self._classes.names, scale=self._config.scale, numeric=self._reading.numeric,
            names=self._reading.names, room=self._room,
        )  # fmt: skip

    def read(self, split: Split) -> Iterator[tuple[Batch, int]]:
        """The rows of all files, in order, with labels as a dataset stores them."""
        chunks = (chunk for source in self.files[split] for chunk in self._reading.chunks(source))
        place: Source | None = None
        for chunk, parsed, negatives in parse_in_order(chunks, self._parse):
            if chunk.source is not place:
                place, numbered, bytes_before = chunk.source, 0, 0
            parsed = self._number_classes(split, parsed)
            self._check(chunk.source, numbered, parsed, negatives)
            if self._reading.names is not None:
                self._reading.names.take(parsed.texts)
            if self._largest is not None:
                self._largest.take(parsed.batch, f"`{chunk.source.name}`", numbered + parsed.rows)
            numbered += parsed.num_numbered
            yield self._weigh(chunk.source, parsed), chunk.bytes_read - bytes_before
            bytes_before = chunk.bytes_read
        for source in self.files[split]:
            if id(source) in self._weights:
                self._weights[id(source)].end()

    def _weigh(self, source: Source, parsed: Parsed) -> Batch:
        """The rows with weights, if rows of this dataset have any: 1 in a file without weights."""
        if id(source) in self._weights:
            return self._weights[id(source)].weigh(parsed).batch
        if self._weights:
            return parsed.batch._replace(weights=np.ones(parsed.batch.num_rows, np.float32))
        return parsed.batch

    def _parse(self, chunk: Chunk[Any]) -> tuple[Chunk[None], Parsed, dict[int, int]]:
        """The rows of a chunk, and the first of them with the label 0 and with -1. Runs in several threads at once."""
        most_bad, labels = self._config.skip_bad_rows + 1, self._config.labels
        parsed = self._reading.parse(chunk, most_bad)
        may_be_mixed = labels == "two-classes" and not parsed.names
        negatives = first_negatives(parsed.batch.labels, parsed.rows) if may_be_mixed else {}
        # The text or table is freed as soon as it is parsed, not when its turn comes.
        freed = Chunk(chunk.source, None, chunk.start, chunk.bytes_read)
        parsed = parsed.with_labels(labels, self._reading.label_column, most_bad)
        return freed, parsed.with_names() if labels == "classes" and not parsed.names else parsed, negatives

    def _number_classes(self, split: Split, parsed: Parsed) -> Parsed:
        """The rows with numbers of classes as labels, if labels are names of classes."""
        if not parsed.names:
            return parsed
        kind, is_train = self._config.labels, split == "train"
        used = np.unique(parsed.batch.labels.astype(np.int64))  # bad rows may have other names
        numbers = np.full(len(parsed.names), -1, np.int64)
        numbers[used] = self._classes.number([parsed.names[place] for place in used], may_grow=is_train)
        if is_train and kind == "two-classes":
            others = " and ".join(f"`{printable(name)}`" for name in self._classes.names)
            what = f"the label is `{{}}`; the other labels are {others}"
            why = BadRow(0, self._reading.label_column, what, "`--labels classes` reads more than two classes")
        elif is_train:
            what = f"the label is `{{}}`, one more than the {MOST_CLASSES:,} classes that there can be"
            why = BadRow(0, self._reading.label_column, what, "check --label; `--labels numbers` reads any numbers")
        else:
            what = "the label is `{}`, which no training row has"
            why = BadRow(0, self._reading.label_column, what, "train on rows of all classes")
        return parsed.with_classes(numbers, kind, why, self._config.skip_bad_rows + 1)

    def _check(self, source: Source, numbered: int, parsed: Parsed, negatives: dict[int, int]) -> None:
        """Raise for the first row of a chunk that cannot be tolerated; `numbered` rows of its file come before it."""
        errors: list[tuple[int, DataError]] = []
        tolerated = self._config.skip_bad_rows - self.bad_rows
        if len(parsed.bad) > tolerated:
            bad = parsed.bad[tolerated]
            errors.append((bad.row, bad_row_error(source, numbered, bad, self._config.skip_bad_rows)))
        new = {label: row for label, row in negatives.items() if label not in self._first_negatives}
        self._first_negatives |= {label: f"`{source.name}`, row {numbered + row}" for label, row in new.items()}
        if len(self._first_negatives) == 2:  # then it is unclear which is the negative class
            mixed = f"labels are mixed: 0 in {self._first_negatives[0]}, -1 in {self._first_negatives[-1]}"
            error = DataError(mixed, "use either 0 and 1 or -1 and +1, the same in all files")
            errors.append((max(new.values(), default=0), error))
        if errors:
            raise min(errors, key=lambda error: error[0])[1]
        self.bad_rows += len(parsed.bad)


def bad_row_error(source: Source, numbered: int, bad: BadRow, skipped: int) -> DataError:
    """What to raise for a bad row after `skipped` others; `numbered` rows of its file come before its chunk."""
    limit = f" (after {counted(skipped, 'other bad row')})" if skipped else ""
    message = f"`{source.name}`, row {numbered + bad.row}, {bad.column}: {bad.problem}{limit}"
    return DataError(message, f"{bad.hint}; --skip-bad-rows N skips up to N such rows")
