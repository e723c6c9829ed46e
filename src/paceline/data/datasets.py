"""Which kind of dataset is this?"""

from __future__ import annotations

from pathlib import Path

from paceline.data.blocks import Dataset
from paceline.data.folders import open_folder
from paceline.data.images import ImageDataset
from paceline.data.manifests import IMAGES, kind_of


def open_dataset(path: Path | str) -> Dataset | ImageDataset:
    """The dataset at a path or URL, of rows or of images as its manifest says."""
    return ImageDataset(path) if kind_of(open_folder(path)) == IMAGES else Dataset(path)
