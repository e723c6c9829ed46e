"""What does a dataset folder say about itself?

A manifest names the kind of its rows, except for sparse rows, which are older than the field. It is JSON that people
can read: what they look for comes first, and long lists of numbers come last. It ends with the checksum of everything
before it. Those of older datasets are one line, and some have no checksum.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec
import xxhash

from paceline.data.blocks.folders import Folder, open_folder
from paceline.errors import BAD_TEXT, DataError, warn
from paceline.files import MOST_BYTES

FORMAT_VERSION = 1
SEAL, END = b',\n  "checksum": "', b'"\n}\n'
ONE_LINE_SEAL, ONE_LINE_END = b',"checksum":"', b'"}'
WIDTH = 140
FIRST = ("kind", "version", "source", "labels", "features", "fields", "weighted", "label_statistics")
LAST = ("train", "validation", "test", "scaling", "hot_keys", "hot_counts")

M = TypeVar("M", bound=msgspec.Struct)


class Head(msgspec.Struct, frozen=True):
    """What the manifests of all kinds and versions have."""

    kind: str = "rows"
    version: int = FORMAT_VERSION
    checksum: str = ""


def write_manifest(manifest: msgspec.Struct) -> bytes:
    """A manifest as it is stored, with its checksum."""
    found = msgspec.to_builtins(manifest)
    found.pop("checksum", None)
    names = [name for name in FIRST if name in found]
    names += [name for name in found if name not in (*FIRST, *LAST)]
    names += [name for name in LAST if name in found]
    return seal(_in_lines({name: found[name] for name in names}).encode())


def seal(manifest: bytes) -> bytes:
    """A manifest, a JSON object, with its checksum as the last field."""
    body = manifest.rstrip()[:-1].rstrip()
    return body + SEAL + xxhash.xxh3_64_hexdigest(body).encode() + END


def _is_sealed(text: bytes) -> bool:
    """Whether the checksum of a manifest that has one is that of its content."""
    body, found, _ = text.rpartition(SEAL)
    if found:
        return seal(body + b"}") == text
    body, _, _ = text.rpartition(ONE_LINE_SEAL)
    return body + ONE_LINE_SEAL + xxhash.xxh3_64_hexdigest(body + b"}").encode() + ONE_LINE_END == text


def _in_lines(value: Any, indent: str = "") -> str:
    """JSON with one line per field or element, except for what fits into one line and for lists of plain values.

    >>> print(_in_lines({"a": [1, 2], "b": {"c": "x" * 70, "d": "y" * 70}}))
    {
      "a": [1, 2],
      "b": {
        "c": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        "d": "yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy"
      }
    }
    """
    line = msgspec.json.format(msgspec.json.encode(value), indent=0).decode()
    is_list = isinstance(value, list | tuple)
    if is_list and not any(isinstance(item, dict | list | tuple) for item in value):
        return line
    if (not isinstance(value, dict) and not is_list) or (indent and len(indent) + len(line) <= WIDTH):
        return line
    inner = f"{indent}  "
    parts = (
        [_in_lines(item, inner) for item in value] if is_list else
        [f"{json.dumps(name, ensure_ascii=False)}: {_in_lines(item, inner)}" for name, item in value.items()]
    )  # fmt: skip
    start, end = "[]" if is_list else "{}"
    return f"{start}\n{inner}" + f",\n{inner}".join(parts) + f"\n{indent}{end}"


def holds_dataset(place: str) -> bool:
    """Whether there is a manifest at a path or URL; otherwise it may be a file of rows."""
    try:
        open_folder(place).read("manifest.json")
    except (OSError, DataError):
        return False
    return True


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
    if head.checksum and not _is_sealed(text):
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
