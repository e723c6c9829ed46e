"""Which kind of dataset is this?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from paceline.data.blocks.folders import open_folder
from paceline.data.blocks.manifests import kind_of
from paceline.errors import DataError
from paceline.imports import import_from

if TYPE_CHECKING:
    from paceline.data.images.dataset import ImageDataset
    from paceline.data.sparse.dataset import SparseDataset

AnyDataset: TypeAlias = "SparseDataset | ImageDataset"

# Imported when one is opened: a run needs one of them.
KINDS = {"rows": "paceline.data.sparse.dataset:SparseDataset", "images": "paceline.data.images.dataset:ImageDataset"}


def open_dataset(path: Path | str) -> AnyDataset:
    """The dataset at a path or URL, of the kind that its manifest names."""
    kind = kind_of(open_folder(path))
    if kind not in KINDS:
        raise DataError(
            f"`{path}` holds {kind}, which this version of paceline cannot read; it reads {' and '.join(KINDS)}",
            "prepare the data again, or update paceline",
        )
    found: AnyDataset = import_from(KINDS[kind])(path)
    return found
