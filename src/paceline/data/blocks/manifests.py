"""What does a dataset folder say of itself, and when does it appear?

There are two kinds of datasets: rows of keys and values, whose manifest does not name its kind, and images.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from paceline.data.blocks.folders import Folder
from paceline.data.blocks.partial import PartialFolder
from paceline.errors import DataError
from paceline.files import refuse_existing, replace_file, sync_to_disk

ROWS, IMAGES = "rows", "images"
CONTENTS = {ROWS: "rows of keys and values", IMAGES: "images"}
HINTS = {
    ROWS: "`paceline prepare` makes rows of Criteo, LIBSVM, Parquet and their like",
    IMAGES: "`paceline prepare` makes images of IDX, CIFAR-10 and image folders; `generate images` makes them up",
}

M = TypeVar("M", bound=msgspec.Struct)


class Head(msgspec.Struct, frozen=True):
    """What the manifests of all kinds and versions have."""

    kind: str = ROWS
    version: int = 1


def kind_of(folder: Folder) -> str:
    """Which kind of dataset lies in a folder."""
    return _decode(folder, _read(folder), Head).kind


def read_manifest(folder: Folder, kind: str, version: int, manifest: type[M]) -> M:
    """The manifest of a folder that must hold a dataset of this kind and format version."""
    text = _read(folder)
    head = _decode(folder, text, Head)
    if head.kind != kind:
        raise DataError(f"`{folder}` holds {CONTENTS.get(head.kind, head.kind)}, not {CONTENTS[kind]}", HINTS[kind])
    if head.version != version:
        raise DataError(
            f"`{folder}` has format version {head.version}; this paceline reads {version}", "prepare the data again"
        )
    return _decode(folder, text, manifest)


def put_in_place(partial: PartialFolder, manifest: msgspec.Struct) -> None:
    """Write the manifest of a folder whose blocks are all there, and let the folder appear under its name."""
    out = partial.out
    replace_file(partial.path / "manifest.json", msgspec.json.encode(manifest))
    refuse_existing(out)
    if out.is_dir():
        out.rmdir()
    partial.move_into_place()
    sync_to_disk(out.parent)


def _read(folder: Folder) -> bytes:
    if not folder.exists():
        raise DataError(f"no dataset at `{folder}`", "`paceline generate` or `paceline prepare` makes one")
    try:
        return bytes(folder.read("manifest.json").to_pybytes())
    except FileNotFoundError:
        raise DataError(
            f"`{folder}` is no dataset: it has no manifest.json",
            "give a folder that `paceline prepare --out` or `paceline generate --out` made, to its end",
        ) from None


def _decode(folder: Folder, text: bytes, manifest: type[M]) -> M:
    try:
        return msgspec.json.decode(text, type=manifest)
    except msgspec.DecodeError as error:
        raise DataError(f"`{folder}/manifest.json` does not read: {error}", "prepare the data again") from None
