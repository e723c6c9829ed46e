"""Which kind of dataset is this?"""

from __future__ import annotations

from pathlib import Path

from paceline.data.blocks.folders import open_folder
from paceline.data.blocks.manifests import kind_of
from paceline.data.images.dataset import IMAGE_ROWS, ImageDataset
from paceline.data.sparse.dataset import SPARSE_ROWS, SparseDataset
from paceline.errors import DataError

AnyDataset = SparseDataset | ImageDataset

KINDS: dict[str, type[AnyDataset]] = {SPARSE_ROWS.name: SparseDataset, IMAGE_ROWS.name: ImageDataset}


def open_dataset(path: Path | str) -> AnyDataset:
    """The dataset at a path or URL, of the kind that its manifest names."""
    kind = kind_of(open_folder(path))
    if kind not in KINDS:
        raise DataError(
            f"`{path}` holds {kind}, which this version of paceline cannot read; it reads {' and '.join(KINDS)}",
            "prepare the data again, or update paceline",
        )
    return KINDS[kind](path)
