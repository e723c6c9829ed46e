"""How do raw images become a dataset? Like rows: find, read in chunks, split into training and test rows, write."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from paceline.data.blocks.dataset import Split
from paceline.data.images.blocks import Images
from paceline.data.images.dataset import ImageDataset, image_writer
from paceline.data.prepare_settings import PrepareConfig, Prepared, PrepareProgress
from paceline.data.prepare_steps import ReadMeter, fill
from paceline.data.sources.cifar import Cifar
from paceline.data.sources.files import Source, total_bytes
from paceline.data.sources.idx import Idx
from paceline.data.sources.image_folders import ImageFolders
from paceline.data.sources.image_formats import ImageFiles, ImageFormat, ImageReader, choose_files
from paceline.errors import ConfigError

MOST_NAMED = 5  # of the files that are left out


def prepare_images(
    config: PrepareConfig,
    name: ImageFormat,
    train: list[Source],
    test: list[Source],
    left_out: tuple[str, ...],
    progress: Callable[[PrepareProgress], None],
) -> Prepared[ImageDataset]:
    """Make the dataset `config.out` of images; the arguments are those that `prepare` has found out."""
    began = time.perf_counter()
    files = _split_files(config, name, train, test)
    images = open_images(config, name, files)
    meter = ReadMeter(total_bytes([*files.train, *files.test]), progress)
    drawn = {"test_fraction": config.test_fraction, "seed": config.seed} if config.test_fraction else {}
    source = {"format": name, "sources": config.sources, "test": config.test, **drawn, **images.settings}
    with image_writer(config.out, shape=images.shape, class_names=images.class_names, source=source) as writer:
        train_rows, test_rows = _read(images, "train", meter), _read(images, "test", meter)
        dataset = fill(writer, config, (files.train, train_rows), (files.test, test_rows))
    meter.end()
    notes = [*files.notes, *images.notes]
    if len(left_out) > MOST_NAMED:
        notes.append(f"{len(left_out):,} files are test files: not used for training")
        left_out = ()
    return Prepared(dataset, meter.rows, 0, time.perf_counter() - began, left_out, tuple(notes))


def _read(images: ImageReader, split: Split, meter: ReadMeter) -> Iterator[Images]:
    for rows, num_bytes in images.read(split):
        meter.take(rows.num_rows, meter.bytes_read + num_bytes)
        yield rows


def open_images(config: PrepareConfig, name: ImageFormat, files: ImageFiles) -> ImageReader:
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
