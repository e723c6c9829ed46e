"""How does raw input become a dataset?

The whole story: find the files, recognise the format, read them in chunks, parse the chunks on all cores, tell test
rows from training rows, and write blocks. One thread reads, several parse, and the calling thread writes, in the
order of the input, so that neither the result nor the first error depends on timing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from paceline.data.held_out import hold_out
from paceline.data.images.dataset import ImageDataset
from paceline.data.pipeline import parse_in_order
from paceline.data.prepare_images import prepare_images
from paceline.data.prepare_settings import PrepareConfig as PrepareConfig
from paceline.data.prepare_settings import Prepared as Prepared
from paceline.data.prepare_settings import Progress as Progress
from paceline.data.prepare_settings import check_settings, check_settings_for
from paceline.data.sources.columnar import describe_columns
from paceline.data.sources.files import Chunk, Source, find_sources, leave_out, total_bytes
from paceline.data.sources.formats import FormatName, open_format, recognise
from paceline.data.sources.image_formats import ImageFormat, recognise_images
from paceline.data.sources.libsvm import Libsvm
from paceline.data.sources.parsed import Format, Parsed
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.dataset import Dataset, DatasetWriter
from paceline.errors import ConfigError, DataError
from paceline.files import refuse_existing

PROGRESS_SECONDS = 0.2


def prepare(config: PrepareConfig, progress: Callable[[Progress], None]) -> Prepared[Dataset] | Prepared[ImageDataset]:
    """Make the dataset `config.out`, or raise and leave nothing there.

    `progress` is called from this thread, a few times a second at most and once at the end.
    """
    began = time.perf_counter()
    check_settings(config)
    refuse_existing(Path(config.out))
    train, test, left_out = _find_files(config)
    first = next((source for source in train if source.num_bytes != 0), None)
    if first is None:
        raise DataError(
            f"the input is empty: {', '.join(source.name for source in train[:5])}", "check how it was made"
        )
    name = _format(config, train, first)
    check_settings_for(name, config)
    if name == "idx" or name == "cifar" or name == "images":
        return prepare_images(config, name, train, test, left_out, progress)
    reading = open_format(
        name,
        first,
        features=config.features,
        hash_bits=config.hash_bits,
        index_base=config.index_base,
        integers=config.integers,
        label=config.label,
    )
    check_features(name, config.features, reading)

    seen = Seen(config.skip_bad_rows, total_bytes([*train, *test]), progress)
    with DatasetWriter(config.out, features=reading.features, source=_origin(config, name, reading)) as writer:
        for batch in _read(train, reading, seen):
            for split, rows in hold_out(batch, seen.rows - batch.num_rows, config.test_fraction, config.seed):
                writer.add(split, rows)
        _require_rows(seen.rows, train)
        train_rows = seen.rows
        for batch in _read(test, reading, seen):
            writer.add("test", batch)
        _require_rows(seen.rows - train_rows, test)
        dataset = writer.finish()
    seen.report()
    return Prepared(dataset, seen.rows, seen.bad_rows, time.perf_counter() - began, left_out, _notes(config, reading))


def _find_files(config: PrepareConfig) -> tuple[list[Source], list[Source], tuple[str, ...]]:
    """The training files, the test files, and the names of those left out of training because they are test files."""
    test = find_sources(config.test)
    train, held_out = leave_out(find_sources(config.sources), test)
    if not train:
        names = ", ".join(f"`{source.name}`" for source in held_out[:5])
        raise ConfigError(
            f"no training file is left: {names} {'are' if len(held_out) > 1 else 'is'} in `test` too",
            "`--test-fraction 0.1` draws test rows from the training files",
        )
    return train, test, tuple(source.name for source in held_out)


def _format(config: PrepareConfig, sources: list[Source], first: Source) -> FormatName | ImageFormat:
    """The format that was said, or else what the files' names and the first one's bytes say."""
    if config.format != "auto":
        return config.format
    return recognise_images(sources) or recognise(first, config.label)


def _notes(config: PrepareConfig, reading: Format) -> tuple[str, ...]:
    """What was found out from the input and decides what the rows are, for the user to check."""
    settings = reading.settings
    if "columns" in settings:
        return (describe_columns(settings["columns"]),)
    if isinstance(reading, Libsvm) and config.index_base == "auto":
        return (f"keys count from {reading.base}",)
    return ()


def _read(sources: list[Source], reading: Format, seen: Seen) -> Iterator[Batch]:
    """The rows of all files, in order."""

    def parse(chunk: Chunk[Any]) -> tuple[Chunk[None], Parsed]:
        # The text or table goes as soon as it is parsed, not when its turn comes.
        return Chunk(chunk.source, None, chunk.start, chunk.bytes_read), reading.parse(chunk, seen.most_bad + 1)

    chunks = (chunk for source in sources for chunk in reading.chunks(source))
    for chunk, parsed in parse_in_order(chunks, parse):
        seen.take(chunk, parsed)
        yield parsed.batch


def _require_rows(num_rows: int, sources: list[Source]) -> None:
    if sources and not num_rows:
        names = ", ".join(f"`{source.name}`" for source in sources[:5])
        raise DataError(f"no rows in {names}", "check the files, and --format")


def _origin(config: PrepareConfig, name: FormatName, reading: Format) -> dict[str, Any]:
    """What the manifest says about how the dataset was made: enough to make it again."""
    drawn = {"test_fraction": config.test_fraction, "seed": config.seed} if config.test_fraction else {}
    return {"format": name, "sources": config.sources, "test": config.test, **drawn, **reading.settings}


class Seen:
    """What was read so far: it numbers rows within their file, counts bad ones and remembers which labels there are."""

    def __init__(self, most_bad: int, bytes_total: int | None, progress: Callable[[Progress], None]) -> None:
        self.most_bad = most_bad
        self.rows = 0
        self.bad_rows = 0
        self._progress = progress
        self._bytes_total = bytes_total
        self._reported = time.perf_counter()
        self._source: Source | None = None
        self._numbered = 0
        self._bytes_before = 0
        self._bytes_in_file = 0
        self._first_zero = ""
        self._first_minus = ""

    def take(self, chunk: Chunk[Any], parsed: Parsed) -> None:
        """Account for a chunk; raise for its first row that cannot be tolerated."""
        if chunk.source is not self._source:
            self._source = chunk.source
            self._numbered = 0
            self._bytes_before += self._bytes_in_file
        self._bytes_in_file = chunk.bytes_read
        errors = [error for error in (self._bad_row(chunk, parsed), self._mixed_labels(chunk, parsed)) if error]
        if errors:
            raise min(errors, key=lambda error: error[0])[1]
        self.rows += parsed.batch.num_rows
        self.bad_rows += len(parsed.bad)
        self._numbered += parsed.num_numbered
        if time.perf_counter() - self._reported > PROGRESS_SECONDS:
            self.report()

    def report(self) -> None:
        self._reported = time.perf_counter()
        self._progress(Progress(self.rows, self._bytes_before + self._bytes_in_file, self._bytes_total))

    def _bad_row(self, chunk: Chunk[Any], parsed: Parsed) -> tuple[int, DataError] | None:
        tolerated = self.most_bad - self.bad_rows
        if len(parsed.bad) <= tolerated:
            return None
        row, column, problem, hint = parsed.bad[tolerated]
        limit = f" (after {self.most_bad} other bad rows)" if self.most_bad else ""
        return row, DataError(
            f"{self._place(chunk, row)}, {column}: {problem}{limit}",
            f"{hint}; --skip-bad-rows N passes over N such rows",
        )

    def _mixed_labels(self, chunk: Chunk[Any], parsed: Parsed) -> tuple[int, DataError] | None:
        """An error once both 0 and -1 were seen: which of them is the negative class?"""
        second = [0]
        if parsed.first_zero and not self._first_zero:
            self._first_zero = self._place(chunk, parsed.first_zero)
            second.append(parsed.first_zero)
        if parsed.first_minus and not self._first_minus:
            self._first_minus = self._place(chunk, parsed.first_minus)
            second.append(parsed.first_minus)
        if not self._first_zero or not self._first_minus:
            return None
        return max(second), DataError(
            f"labels are mixed: 0 in {self._first_zero}, -1 in {self._first_minus}",
            "labels are 0 and 1, or -1 and +1, in all files alike",
        )

    def _place(self, chunk: Chunk[Any], row: int) -> str:
        return f"`{chunk.source.name}`, row {self._numbered + row}"


def check_features(name: FormatName, declared: int | None, reading: Format) -> None:
    """Raise where the format itself says how many features there are, and something else was declared."""
    if declared is not None and declared != reading.features:
        raise ConfigError(
            f"`features` is `{declared}`, but this {name} input has {reading.features}",
            "leave --features out; --hash-bits says how many keys text is hashed to",
        )
