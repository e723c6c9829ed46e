"""What does a dataset folder say about itself?

A manifest names the kind of its rows, except for sparse rows, which are older than the field. It ends with the
checksum of everything before it; those of older datasets have none.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
import xxhash

from paceline.data.blocks.folders import Folder
from paceline.errors import BAD_TEXT, DataError, warn
from paceline.files import MOST_BYTES

FORMAT_VERSION = 1
SEAL = b',"checksum":"'

M = TypeVar("M", bound=msgspec.Struct)


class Head(msgspec.Struct, frozen=True):
    """What the manifests of all kinds and versions have."""

    kind: str = "rows"
    version: int = FORMAT_VERSION
    checksum: str = ""


def seal(manifest: bytes) -> bytes:
    """A manifest, a JSON object, with its checksum as the last field."""
    return manifest[:-1] + SEAL + xxhash.xxh3_64_hexdigest(manifest).encode() + b'"}'


def kind_of(folder: Folder) -> str:
    """The name of the kind of rows in a folder."""
    return _decode(folder, read_text(folder), Head).kind


def read_manifest(folder: Folder, kind: str, made_by: str, manifest: type[M]) -> M:
    """The manifest of a folder that must hold a dataset of this kind; `made_by` is the hint if it does not."""
    text = read_text(folder)
    head = _decode(folder, text, Head)
    if head.kind != kind:
        raise DataError(f"`{folder}` holds {head.kind}, not {kind}", made_by)
    if head.version != FORMAT_VERSION:
        raise DataError(
            f"`{folder}` has format version {head.version}; this version of paceline reads {FORMAT_VERSION}",
            "prepare the data again",
        )
    if head.checksum and seal(text.rpartition(SEAL)[0] + b"}") != text:
        raise DataError(
            f"`{folder}/manifest.json` has a wrong checksum: it changed after it was written", "prepare the data again"
        )
    if not head.checksum:
        warn(f"`{folder}/manifest.json` has no checksum, because an older version wrote it")
    return _decode(folder, text, manifest)


def read_text(folder: Folder) -> bytes:
    """The manifest of a folder as it is written; `DataError` if there is none, or if it is too large."""
    if not folder.exists():
        raise DataError(f"no dataset at `{folder}`", "`paceline generate` or `paceline prepare` makes one")
    try:
        content = folder.read("manifest.json")
        if content.size > MOST_BYTES:
            message = f"`{folder}/manifest.json` has {content.size / 1e9:.1f} GB; the limit is {MOST_BYTES >> 20} MiB"
            raise DataError(message, "prepare the data again")
        return bytes(content.to_pybytes())
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"`{folder}` is not a dataset: it has no manifest.json",
            "give a folder that `paceline prepare --out` or `paceline generate --out` finished",
        ) from None


def _decode(folder: Folder, text: bytes, manifest: type[M]) -> M:
    try:
        return msgspec.json.decode(text, type=manifest)
    except BAD_TEXT as error:
        raise DataError(f"`{folder}/manifest.json` cannot be read: {error}", "prepare the data again") from None
