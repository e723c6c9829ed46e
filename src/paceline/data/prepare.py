"""How does raw input become a dataset?

The whole story: find the files, recognise the format, read them in chunks, parse the chunks on all cores, tell
validation and test rows from training rows, and write blocks. One thread reads, several parse, and several complete and
write blocks. The calling thread says which rows a block has, in the order of the input, so that neither the result nor
the first error depends on timing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from paceline.data.blocks.dataset import SPLITS, Split
from paceline.data.blocks.files import R
from paceline.data.blocks.writer import DatasetWriter
from paceline.data.pipeline import parse_in_order
from paceline.data.prepare_images import RawImages
from paceline.data.prepare_rows import RawRows
from paceline.data.prepare_settings import PrepareConfig, Prepared, PrepareProgress, check_settings, check_settings_for
from paceline.data.sources.files import Source, find_sources, leave_out, total_bytes
from paceline.data.sources.formats import ROW_FORMATS, recognise, refuse_other_formats
from paceline.data.sources.image_formats import IMAGE_FORMATS, recognise_images
from paceline.errors import ConfigError, DataError
from paceline.files import refuse_existing
from paceline.kernels.hashing import draw

Parts = list[tuple[Split, R]]

PROGRESS_SECONDS = 0.2
MOST_NAMED = 5  # of the files that are left out


class RawData(Protocol[R]):
    """The files of an input, of rows or of images, ready to be read.

    `settings` are the choices needed to prepare the same data again; `notes` tell the user what was found.
    """

    files: dict[Split, list[Source]]
    settings: dict[str, Any]
    bad_rows: int

    @property
    def notes(self) -> tuple[str, ...]: ...

    def writer(self, source: dict[str, Any]) -> DatasetWriter[R, Any]:
        """A writer of what is read here; `source` is what the manifest says about how it was made."""

    def read(self, split: Split) -> Iterator[tuple[R, int]]:
        """The rows of a split in order, some at a time, each time with the bytes of files read for them."""


def prepare(config: PrepareConfig, progress: Callable[[PrepareProgress], None]) -> Prepared[Any]:
    """Make the dataset `config.out`, or raise and leave nothing there.

    `progress` is called from this thread, at most a few times per second and once at the end.
    """
    began = time.perf_counter()
    check_settings(config)
    refuse_existing(Path(config.out))
    files, left_out = _find_files(config)
    train = files["train"]
    first = next((source for source in train if source.num_bytes != 0), None)
    if first is None:
        raise DataError(
            f"the input is empty: {', '.join(f'`{source.name}`' for source in train[:5])}", "check how it was made"
        )
    name = config.format if config.format != "auto" else recognise_images(train) or recognise(first, config)
    check_settings_for(name, config)
    is_images = name in IMAGE_FORMATS
    if config.format == "auto" and not is_images:
        refuse_other_formats(name, [source for split in files.values() for source in split], config)
    opened: RawData[Any] = (
        RawImages(config, name, files) if is_images else RawRows(config, ROW_FORMATS[name](first, config), files)
    )
    prepared = write_dataset(config, name, opened, progress)
    notes = prepared.notes
    if len(left_out) > MOST_NAMED:
        notes += (f"{len(left_out):,} files are held out: not used for training",)
        left_out = ()
    return prepared._replace(seconds=time.perf_counter() - began, left_out=left_out, notes=notes)


def write_dataset(
    config: PrepareConfig, name: str, opened: RawData[Any], progress: Callable[[PrepareProgress], None]
) -> Prepared[Any]:
    """Read opened data of the format `name`, and write it as a dataset."""
    began = time.perf_counter()
    meter = ReadMeter(total_bytes([source for split in opened.files.values() for source in split]), progress)
    source = {"format": name, "sources": config.sources, **_held_out(config), **opened.settings}
    with opened.writer(source) as writer:
        _fill(writer, config, opened, meter)
        dataset = writer.finish()
    meter.end()
    return Prepared(dataset, meter.rows, opened.bad_rows, time.perf_counter() - began, (), opened.notes)


def _find_files(config: PrepareConfig) -> tuple[dict[Split, list[Source]], tuple[str, ...]]:
    """The files of each split, and the names of those left out of training because they belong to another one."""
    validation, test = find_sources(config.validation), find_sources(config.test)
    _, both = leave_out(validation, test)
    if both:
        raise ConfigError(
            f"`{both[0].name}` is in both `validation` and `test`", "a file is for one of them, or for training"
        )
    train, held_out = leave_out(find_sources(config.sources), [*validation, *test])
    if not train:
        names = ", ".join(f"`{source.name}`" for source in held_out[:5])
        where = " or ".join(f"`{split}`" for split, found in (("validation", validation), ("test", test)) if found)
        raise ConfigError(
            f"no training file is left: {names} {'are' if len(held_out) > 1 else 'is'} in {where} too",
            "`--test-fraction 0.1` draws test rows from the training files",
        )
    return {"train": train, "validation": validation, "test": test}, tuple(source.name for source in held_out)


def _held_out(config: PrepareConfig) -> dict[str, Any]:
    """How validation and test rows were chosen, for the manifest."""
    fractions = {"validation_fraction": config.validation_fraction, "test_fraction": config.test_fraction}
    drawn: dict[str, Any] = {name: fraction for name, fraction in fractions.items() if fraction}
    validation = {"validation": config.validation} if config.validation else {}
    return {**validation, "test": config.test, **drawn, **({"seed": config.seed} if drawn else {})}


def _fill(writer: DatasetWriter[R, Any], config: PrepareConfig, opened: RawData[R], meter: ReadMeter) -> None:
    """Write all rows; some of those of the training files may be held out."""
    for split in SPLITS:
        rows = 0
        files = opened.files.get(split, [])
        for parts, num_bytes in _divide(config, split, opened.read(split)) if files else ():
            num_rows = sum(part.num_rows for _, part in parts)
            meter.take(num_rows, num_bytes)
            for part_split, part in parts:
                writer.add(part_split, part)
            rows += num_rows
        if files and not rows:
            names = ", ".join(f"`{source.name}`" for source in files[:5])
            in_memory = "give at least one row; streams and iterators can be read once"
            hint = "check the files, and --format" if files[0].path else in_memory
            raise DataError(f"no rows in {names}", hint)


def _divide(config: PrepareConfig, split: Split, read: Iterator[tuple[R, int]]) -> Iterator[tuple[Parts[R], int]]:
    """Which rows go into which split, and the bytes read for them."""
    fractions: dict[Split, float] = {"test": config.test_fraction, "validation": config.validation_fraction}
    if split != "train" or not any(fractions.values()):
        return (([(split, rows)], num_bytes) for rows, num_bytes in read)

    def number() -> Iterator[tuple[R, int, int]]:
        first = 0
        for rows, num_bytes in read:
            yield rows, first, num_bytes
            first += rows.num_rows

    def hold_out(numbered: tuple[R, int, int]) -> tuple[Parts[R], int]:
        # Row i of the input is a test row if its pseudo-random number is below the fraction, and a validation row if it
        # is above that, but below the sum of both fractions.
        rows, first, num_bytes = numbered
        left, below, parts = np.ones(rows.num_rows, np.bool_), 0.0, []
        for other, fraction in fractions.items():
            if fraction:
                below += fraction
                drawn = np.empty(rows.num_rows, np.bool_)
                draw(np.uint64(config.seed), first, drawn, np.uint64(int(below * 2.0**64)))
                parts.append((other, rows.select(drawn & left)))
                left &= ~drawn
        return [("train", rows.select(left)), *parts], num_bytes

    return parse_in_order(number(), hold_out)


class ReadMeter:
    """Counts rows and bytes, and calls `progress` a few times per second."""

    def __init__(self, bytes_total: int | None, progress: Callable[[PrepareProgress], None]) -> None:
        self.rows = 0
        self._bytes_read = 0
        self._bytes_total = bytes_total
        self._progress = progress
        self._reported = time.perf_counter()

    def take(self, rows: int, num_bytes: int) -> None:
        """Count more rows, and the bytes read for them."""
        self.rows += rows
        self._bytes_read += num_bytes
        if time.perf_counter() - self._reported > PROGRESS_SECONDS:
            self._report()

    def end(self) -> None:
        """Report that everything was read, including what follows the last row of a compressed file."""
        self._bytes_read = self._bytes_total or self._bytes_read
        self._report()

    def _report(self) -> None:
        self._reported = time.perf_counter()
        self._progress(PrepareProgress(self.rows, self._bytes_read, self._bytes_total))
