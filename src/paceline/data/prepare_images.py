"""How are raw images read? Which files are for training and which for testing, their names and folders say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paceline.data.blocks.dataset import Split
from paceline.data.blocks.writer import DatasetWriter
from paceline.data.images.blocks import Images
from paceline.data.images.dataset import ImageDataset, image_writer
from paceline.data.prepare_settings import PrepareConfig
from paceline.data.sources.files import Source
from paceline.data.sources.image_formats import IMAGE_FORMATS, ImageFiles, choose_files
from paceline.errors import ConfigError


class RawImages:
    """Files of images."""

    bad_rows = 0

    def __init__(self, config: PrepareConfig, name: str, train: list[Source], test: list[Source]) -> None:
        files = _split_files(config, name, train, test)
        self._out = config.out
        self._images = IMAGE_FORMATS[name].open(files, config)
        self.files: dict[Split, list[Source]] = {"train": files.train, "test": files.test}
        self.settings = self._images.settings
        self.notes = files.notes + self._images.notes

    def writer(self, source: dict[str, Any]) -> DatasetWriter[Images, ImageDataset]:
        shape, class_names = self._images.shape, self._images.class_names
        return image_writer(self._out, shape=shape, class_names=class_names, source=source)

    def read(self, split: Split) -> Iterator[tuple[Images, int]]:
        return self._images.read(split)


def _split_files(config: PrepareConfig, name: str, train: list[Source], test: list[Source]) -> ImageFiles:
    """The files to train and to test on: told by their names, unless test rows were asked for."""
    files = choose_files(name, train)
    if not test and not config.test_fraction:
        return files
    if files.test:
        setting = "test" if test else "test-fraction"
        raise ConfigError(
            f"`{setting}` is given, but the input has test rows of its own: `{files.test[0].name}`",
            f"leave --{setting} out, or name only the training files",
        )
    if not test:
        return files
    held_out = choose_files(name, test)
    return ImageFiles(files.train, held_out.train + held_out.test, files.notes + held_out.notes)
