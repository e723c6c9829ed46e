"""Which kind of dataset is this?"""

from __future__ import annotations

from pathlib import Path

from paceline.data.blocks.folders import open_folder
from paceline.data.blocks.manifests import kind_of
from paceline.data.images.dataset import IMAGES, ImageDataset
from paceline.data.sparse.dataset import SparseDataset

AnyDataset = SparseDataset | ImageDataset


def open_dataset(path: Path | str) -> AnyDataset:
    """The dataset at a path or URL, of the kind that its manifest names."""
    return ImageDataset(path) if kind_of(open_folder(path)) == IMAGES.name else SparseDataset(path)
