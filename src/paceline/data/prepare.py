"""How does raw input become a dataset?

The whole story: find the files, recognise the format, read them in chunks, parse the chunks on all cores, tell test
rows from training rows, and write blocks. One thread reads, several parse, and the calling thread writes, in the
order of the input, so that neither the result nor the first error depends on timing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from paceline.data.images.dataset import ImageDataset
from paceline.data.labels import LabelKind, NegativeLabels, first_negatives
from paceline.data.pipeline import parse_in_order
from paceline.data.prepare_images import prepare_images
from paceline.data.prepare_settings import PrepareConfig as PrepareConfig
from paceline.data.prepare_settings import Prepared as Prepared
from paceline.data.prepare_settings import PrepareProgress as PrepareProgress
from paceline.data.prepare_settings import check_settings, check_settings_for
from paceline.data.prepare_steps import ReadMeter, fill
from paceline.data.sources.files import Chunk, Source, find_sources, leave_out, total_bytes
from paceline.data.sources.formats import FormatName, open_format, recognise
from paceline.data.sources.image_formats import ImageFormat, recognise_images
from paceline.data.sources.parsed import Format, Parsed
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.dataset import SparseDataset, sparse_writer
from paceline.errors import ConfigError, DataError
from paceline.files import refuse_existing


def prepare(
    config: PrepareConfig, progress: Callable[[PrepareProgress], None]
) -> Prepared[SparseDataset] | Prepared[ImageDataset]:
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

    meter = ReadMeter(total_bytes([*train, *test]), progress)
    seen = Seen(config.skip_bad_rows, meter)
    source = _origin(config, name, reading)
    with sparse_writer(config.out, features=reading.features, source=source, labels=config.labels) as writer:
        rows_of = partial(_read, reading=reading, labels=config.labels, seen=seen)
        dataset = fill(writer, config, (train, rows_of(train)), (test, rows_of(test)))
    meter.end()
    return Prepared(dataset, meter.rows, seen.bad_rows, time.perf_counter() - began, left_out, reading.notes)


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


def _read(sources: list[Source], reading: Format, labels: LabelKind, seen: Seen) -> Iterator[Batch]:
    """The rows of all files, in order, with labels as a dataset stores them."""

    def parse(chunk: Chunk[Any]) -> tuple[Chunk[None], Parsed, dict[int, int]]:
        most_bad = seen.most_bad + 1
        parsed = reading.parse(chunk, most_bad)
        negatives = first_negatives(parsed.batch.labels, parsed.rows) if labels == "two-classes" else {}
        # The text or table is freed as soon as it is parsed, not when its turn comes.
        freed = Chunk(chunk.source, None, chunk.start, chunk.bytes_read)
        return freed, parsed.with_labels(labels, reading.label_column, most_bad), negatives

    chunks = (chunk for source in sources for chunk in reading.chunks(source))
    for chunk, parsed, negatives in parse_in_order(chunks, parse):
        seen.take(chunk, parsed, negatives)
        yield parsed.batch


def _origin(config: PrepareConfig, name: FormatName, reading: Format) -> dict[str, Any]:
    """What the manifest says about how the dataset was made: enough to make it again."""
    drawn = {"test_fraction": config.test_fraction, "seed": config.seed} if config.test_fraction else {}
    labels = {"labels": config.labels} if config.labels != "two-classes" else {}
    return {"format": name, "sources": config.sources, "test": config.test, **drawn, **labels, **reading.settings}


class Seen:
    """What has been read so far: numbers rows within their file, counts bad ones and remembers negative labels."""

    def __init__(self, most_bad: int, meter: ReadMeter) -> None:
        self.most_bad = most_bad
        self.bad_rows = 0
        self._meter = meter
        self._source: Source | None = None
        self._numbered = 0
        self._bytes_before = 0
        self._bytes_in_file = 0
        self._negatives = NegativeLabels()

    def take(self, chunk: Chunk[Any], parsed: Parsed, negatives: dict[int, int]) -> None:
        """Account for a chunk; raise for its first row that cannot be tolerated."""
        if chunk.source is not self._source:
            self._source = chunk.source
            self._numbered = 0
            self._bytes_before += self._bytes_in_file
        self._bytes_in_file = chunk.bytes_read
        mixed = self._negatives.take(negatives, lambda row: self._place(chunk, row))
        errors = [error for error in (self._bad_row(chunk, parsed), mixed) if error]
        if errors:
            raise min(errors, key=lambda error: error[0])[1]
        self.bad_rows += len(parsed.bad)
        self._numbered += parsed.num_numbered
        self._meter.take(parsed.batch.num_rows, self._bytes_before + self._bytes_in_file)

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

    def _place(self, chunk: Chunk[Any], row: int) -> str:
        return f"`{chunk.source.name}`, row {self._numbered + row}"


def check_features(name: FormatName, declared: int | None, reading: Format) -> None:
    """Raise if the format itself says how many features there are, and another number was declared."""
    if declared is not None and declared != reading.features:
        raise ConfigError(
            f"`features` is `{declared}`, but this {name} input has {reading.features}",
            "leave --features out; --hash-bits says how many keys text is hashed to",
        )
