"""How are files written so that a crash, a full disk or a second run loses nothing?"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.errors import RunError, UsageError


def refuse_existing(path: Path) -> None:
    """Raise unless `path` is free: absent, or an empty folder."""
    if path.is_dir() and not any(path.iterdir()):
        return
    if path.exists() or path.is_symlink():
        raise UsageError(f"`{path}` exists already", "choose another name, or remove it first")


def sync_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes) -> None:
    """Write `content` so that a reader, and a crash, sees the old file or the new one whole."""
    temporary = path.with_name(f".{path.name}.new")
    with translated_disk_errors(path), temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_to_disk(path.parent)


@contextmanager
def translated_disk_errors(path: Path) -> Iterator[None]:
    """Turn a full disk, a read-only folder and their like into one clear line."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UsageError(
                f"no room left on the disk while writing `{path}`", "free some, or write elsewhere"
            ) from None
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise UsageError(f"`{path}` cannot be written: {error.strerror}", "write elsewhere") from None
        raise RunError(f"writing `{path}` failed: {error.strerror or error}", "check the disk") from error
