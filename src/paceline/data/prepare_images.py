"""How do raw images become a dataset? Like rows: found, read in chunks, split into training and test rows, written."""

from __future__ import annotations

import time
from collections.abc import Callable

from paceline.data.held_out import hold_out
from paceline.data.images.dataset import ImageDataset, ImageWriter
from paceline.data.prepare_settings import PrepareConfig, Prepared, Progress
from paceline.data.sources.cifar import Cifar
from paceline.data.sources.files import Source, total_bytes
from paceline.data.sources.idx import Idx
from paceline.data.sources.image_folders import ImageFolders
from paceline.data.sources.image_formats import ImageFiles, ImageFormat, ImageInput, choose_files
from paceline.errors import ConfigError, DataError

PROGRESS_SECONDS = 0.2
MOST_NAMED = 5  # files left out that are told by name


def prepare_images(
    config: PrepareConfig,
    name: ImageFormat,
    train: list[Source],
    test: list[Source],
    left_out: tuple[str, ...],
    progress: Callable[[Progress], None],
) -> Prepared[ImageDataset]:
    """Make the dataset `config.out` of images; the arguments are those that `prepare` has found out."""
    began = time.perf_counter()
    files = _split_files(config, name, train, test)
    images = open_images(config, name, files)
    seen = SeenImages(total_bytes([*files.train, *files.test]), progress)
    drawn = {"test_fraction": config.test_fraction, "seed": config.seed} if config.test_fraction else {}
    source = {"format": name, "sources": config.sources, "test": config.test, **drawn, **images.settings}
    with ImageWriter(config.out, shape=images.shape, class_names=images.class_names, source=source) as writer:
        for rows, num_bytes in images.read("train"):
            for split, part in hold_out(rows, seen.rows, config.test_fraction, config.seed):
                writer.add(split, part)
            seen.take(rows.num_rows, num_bytes)
        _require_rows(seen.rows, files.train)
        train_rows = seen.rows
        for rows, num_bytes in images.read("test"):
            writer.add("test", rows)
            seen.take(rows.num_rows, num_bytes)
        _require_rows(seen.rows - train_rows, files.test)
        dataset = writer.finish()
    seen.end()
    notes = [*files.notes, *images.notes]
    if len(left_out) > MOST_NAMED:
        notes.append(f"{len(left_out):,} files are test files, and so were left out of training")
        left_out = ()
    return Prepared(dataset, seen.rows, 0, time.perf_counter() - began, left_out, tuple(notes))


def open_images(config: PrepareConfig, name: ImageFormat, files: ImageFiles) -> ImageInput:
    """The input, ready to be read."""
    match name:
        case "idx":
            return Idx(files.train, files.test, config.classes)
        case "cifar":
            return Cifar(files.train, files.test)
        case "images":
            return ImageFolders(files.train, files.test, config.size, config.seed)


def _split_files(config: PrepareConfig, name: ImageFormat, train: list[Source], test: list[Source]) -> ImageFiles:
    """The files to train and to test on: told by their names, unless test rows were asked for."""
    files = choose_files(name, train)
    if not test and not config.test_fraction:
        return files
    if files.test:
        setting = "test" if test else "test-fraction"
        raise ConfigError(
            f"`{setting}` is given, but the input has test rows of its own: `{files.test[0].name}`",
            f"leave --{setting} out, or name the training files alone",
        )
    if not test:
        return files
    held_out = choose_files(name, test)
    return ImageFiles(files.train, held_out.train + held_out.test, files.notes + held_out.notes)


def _require_rows(num_rows: int, sources: list[Source]) -> None:
    if sources and not num_rows:
        names = ", ".join(f"`{source.name}`" for source in sources[:5])
        raise DataError(f"no rows in {names}", "check the files, and --format")


class SeenImages:
    """How many images were read so far, told a few times a second."""

    def __init__(self, bytes_total: int | None, progress: Callable[[Progress], None]) -> None:
        self.rows = 0
        self._bytes_read = 0
        self._bytes_total = bytes_total
        self._progress = progress
        self._reported = time.perf_counter()

    def take(self, rows: int, num_bytes: int) -> None:
        self.rows += rows
        self._bytes_read += num_bytes
        if time.perf_counter() - self._reported > PROGRESS_SECONDS:
            self._report()

    def end(self) -> None:
        """Report that all was read, also what lies behind the last row of a compressed file."""
        self._bytes_read = self._bytes_total or self._bytes_read
        self._report()

    def _report(self) -> None:
        self._reported = time.perf_counter()
        self._progress(Progress(self.rows, self._bytes_read, self._bytes_total))
