"""Which kind of dataset is this?"""

from __future__ import annotations

from pathlib import Path

from paceline.config import SPARSE_MODEL, RunConfig
from paceline.data.blocks.folders import open_folder
from paceline.data.blocks.manifests import IMAGES, kind_of
from paceline.data.images.dataset import ImageDataset
from paceline.data.sparse.dataset import Dataset
from paceline.errors import ConfigError

AnyDataset = Dataset | ImageDataset


def open_dataset(path: Path | str) -> AnyDataset:
    """The dataset at a path or URL, of rows or of images as its manifest says."""
    return ImageDataset(path) if kind_of(open_folder(path)) == IMAGES else Dataset(path)


def _keep_first(dataset: AnyDataset, rows: int) -> None:
    available = dataset.split("train").rows
    if rows > available:
        raise ConfigError(
            f"`train_rows` is {rows:,}; `{dataset.folder}` has {available:,} training rows", "leave it out for all"
        )
    dataset.keep_first(rows)


def open_for(config: RunConfig) -> AnyDataset:
    """The data of a run, which must be what its model learns from."""
    dataset = open_dataset(config.data)
    if config.dense == isinstance(dataset, ImageDataset):
        if config.train_rows:
            _keep_first(dataset, config.train_rows)
        return dataset
    if config.dense:
        raise ConfigError(
            f"the model `{config.model}` learns from images; `{dataset.folder}` has rows of features",
            f"--model {SPARSE_MODEL}, or data that `paceline prepare` made of images",
        )
    raise ConfigError(
        f"the model `{config.model}` learns from rows of features; `{dataset.folder}` has images",
        "--model softmax, or --model alexnet-small",
    )
