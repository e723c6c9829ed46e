"""What is a dataset, whatever its rows are?

A dataset is a folder: `manifest.json` and blocks, Arrow IPC files that are memory-mapped and read without copying. It
is written under a temporary name and renamed when complete, so a folder with a manifest is always complete. Each
block's checksum is verified when the block is first read.

A `RowKind` declares what differs between kinds of rows; `data/sparse` and `data/images` each have one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, get_args

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from paceline.data.blocks.files import BlockInfo, R, SplitInfo, first_rows
from paceline.data.blocks.folders import Folder, open_folder
from paceline.data.blocks.manifests import FORMAT_VERSION, read_manifest
from paceline.data.labels import Labels
from paceline.data.limits import LabelKind
from paceline.data.preparation import check_source
from paceline.errors import DataError

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What the manifests of all kinds have, besides `features` and `labels`. `source` says how the data was made."""

    train: SplitInfo
    test: SplitInfo
    source: dict[str, Any]
    version: int = FORMAT_VERSION
    validation: SplitInfo = SplitInfo()

    def __post_init__(self) -> None:
        check_source(self.source)
        for name in SPLITS:
            split: SplitInfo = getattr(self, name)
            if split.rows != sum(block.rows for block in split.blocks):
                raise ValueError(f"the blocks of `{name}` do not have its {split.rows} rows")
        if not self.train.rows:
            raise ValueError("it has no training rows")


class Buffer(Protocol[R]):
    """Where a reader copies rows to."""

    def copy(self, found: list[tuple[R, NDArray[np.int32]]], num_rows: int) -> R:
        """Copy the chosen rows of blocks, `num_rows` in all, one after the other; valid until the next call."""


@dataclass(frozen=True, eq=False)
class RowKind(Generic[R]):
    """A kind of rows: what a dataset, its writer and its readers need to know about them.

    `name` is what manifests and people call the kind. `identity` is what a fingerprint covers besides the blocks;
    `describe` says in a few words what the rows are. Functions get the dataset's manifest, an instance of `manifest`;
    `buffer` gets the dataset. `fits` says how many of some rows still fit into a block that holds others.
    """

    name: str
    made_by: str
    manifest: type[Any]
    identity: Callable[[Any], str]
    describe: Callable[[Any], str]
    read: Callable[[Folder, BlockInfo, Any], R]
    fits: Callable[[R, list[R]], int]
    write: Callable[[Path, list[R]], BlockInfo]
    buffer: Callable[[Any], Buffer[R]]


class Dataset(Generic[R]):
    """A dataset on disk. `block` maps a block into memory, and verifies it the first time.

    `features` is the number of inputs per row: keys, or the bytes of an image.
    """

    def __init__(self, path: Path | str, kind: RowKind[R]) -> None:
        self.folder = open_folder(path)
        self.kind = kind
        self.manifest: Any = read_manifest(self.folder, kind.name, kind.made_by, kind.manifest)
        self.features: int = self.manifest.features
        self.labels: Labels = self.manifest.labels
        self._blocks: dict[tuple[Split, int], R] = {}
        self._reading: dict[tuple[Split, int], threading.Lock] = {}
        self._lock = threading.Lock()
        self._class_numbers: NDArray[Any] | None = None
        self._train: SplitInfo = self.manifest.train
        self._convert: Callable[[R], R] | None = None

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the data: equal for datasets with equal blocks and equal `kind.identity`."""
        digest = xxhash.xxh3_64(f"{self.kind.identity(self.manifest)}\n".encode())
        # Datasets without validation rows have the fingerprints that they had before there were any.
        for split in (split for split in SPLITS if split != "validation" or self.split(split).rows):
            digest.update(f"{split}\n".encode())
            for block in self.split(split).blocks:
                digest.update(f"{block.checksum}\n".encode())
        return digest.hexdigest()

    def split(self, split: Split) -> SplitInfo:
        info: SplitInfo = self._train if split == "train" else getattr(self.manifest, split)
        return info

    def keep_first(self, rows: int) -> None:
        """Use only the first `rows` training rows."""
        self._train = first_rows(self.manifest.train, rows)

    def number_classes_as(self, names: Sequence[str], kind: LabelKind | None = None) -> None:
        """Give classes the numbers that they have among these names, as a model knows them, and labels this `kind`, if
        one is given. Call it before blocks are read. `DataError` if a class is not among them.
        """
        try:
            wanted = Labels(kind or self.labels.kind, tuple(names))
        except ValueError as error:
            raise DataError(f"`{self.folder}` cannot have {error}", "give data with labels of the same kind") from None
        if self.labels != wanted:
            self._class_numbers = self.labels.numbered_as(names).astype(wanted.dtype)
            self.labels = wanted

    @property
    def model_info(self) -> dict[str, Any]:
        """What the file of a model says about the data that it was trained on."""
        return {"source": self.manifest.source}

    def keep_features(self, folder: Path, before: Any) -> dict[str, Any]:
        """Write to the folder of a model what is known about its features: what `model.json` says about that.

        `before` is what the model knew from which training started, if there is one.
        """
        return {}

    def use_source_values(self) -> None:
        """From now on, read rows with the values of the source: those of the blocks, unless these are changed."""
        self.convert(None)

    def convert(self, convert: Callable[[R], R] | None) -> None:
        """Change the rows of all blocks in this way when they are read."""
        self._convert = convert
        self._blocks.clear()

    def block(self, split: Split, index: int) -> R:
        """The rows of one block, mapped and read-only."""
        key = split, index
        info: SplitInfo = getattr(self.manifest, split)
        if key not in self._blocks:
            # One thread reads a block, and others meanwhile read other blocks.
            with self._lock:
                reading = self._reading.setdefault(key, threading.Lock())
            with reading:
                if key not in self._blocks:
                    rows = self.kind.read(self.folder, info.blocks[index], self.manifest)
                    if self._class_numbers is not None:
                        labels = self._class_numbers[rows.labels]
                        labels.flags.writeable = False
                        rows = rows.with_labels(labels)
                    self._blocks[key] = rows if self._convert is None else self._convert(rows)
        self.folder.use(info.blocks[index].file)
        return self._blocks[key]
