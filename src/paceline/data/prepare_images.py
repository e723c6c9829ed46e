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

    def __init__(self, config: PrepareConfig, name: str, sources: dict[Split, list[Source]]) -> None:
        files = _split_files(config, name, sources)
        self._out = config.out
        self._images = IMAGE_FORMATS[name].open(files, config)
        self.files: dict[Split, list[Source]] = {
            "train": files.train, "validation": files.validation, "test": files.test,
        }  # fmt: skip
        self.settings = self._images.settings
        self.notes = files.notes + self._images.notes

    def writer(self, source: dict[str, Any]) -> DatasetWriter[Images, ImageDataset]:
        shape, class_names = self._images.shape, self._images.class_names
        return image_writer(self._out, shape=shape, class_names=class_names, source=source)

    def read(self, split: Split) -> Iterator[tuple[Images, int]]:
        return self._images.read(split)


def _split_files(config: PrepareConfig, name: str, sources: dict[Split, list[Source]]) -> ImageFiles:
    """The files of each split: told by their names, unless rows of the split were asked for."""
    files = choose_files(name, sources["train"])
    asked_for = {
        "validation": config.validation_fraction > 0 or bool(sources["validation"]),
        "test": config.test_fraction > 0 or bool(sources["test"]),
    }
    for split, asked in asked_for.items():
        own: list[Source] = getattr(files, split)
        if asked and own:
            setting = split if sources[split] else f"{split}-fraction"  # type: ignore[index]
            raise ConfigError(
                f"`{setting}` is given, but the input has {split} rows of its own: `{own[0].name}`",
                f"leave --{setting} out, or name only the training files",
            )
    validation, held_out = (
        choose_files(name, sources[split]) if sources[split] else ImageFiles([], [], [])
        for split in ("validation", "test")
    )
    return ImageFiles(
        files.train,
        files.validation + _all_files(validation),
        files.test + _all_files(held_out),
        files.notes + validation.notes + held_out.notes,
    )


def _all_files(files: ImageFiles) -> list[Source]:
    return files.train + files.validation + files.test
