"""How are files written so that a crash, a full disk or another run loses nothing?"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from paceline.errors import RunError, UsageError

# Nothing can be written there, whatever the disk is like.
NO_PLACE = (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)


def refuse_existing(path: Path) -> None:
    """Raise unless `path` is free: absent, or an empty folder."""
    is_empty = path.is_dir() and not any(path.iterdir())
    if not is_empty and (path.exists() or path.is_symlink()):
        raise UsageError(f"`{path}` exists already", "choose another name, or remove it first")


def free_path(path: Path) -> Path:
    """`path`, or the first of `path-2`, `path-3`, … that does not exist."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def sync_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes) -> None:
    """Write `content` so that readers see the whole old file or the whole new one, even after a crash."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        with translated_disk_errors(path):
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_to_disk(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_tensors(path: Path, tensors: dict[str, NDArray[Any]]) -> None:
    """Write a safetensors file and wait until it is on the disk. The user's umask applies."""
    try:
        safetensors.numpy.save_file(tensors, path)
    except SafetensorError as error:
        path.unlink(missing_ok=True)
        full = "No space left" in str(error) or "quota" in str(error)
        with translated_disk_errors(path):
            raise OSError(errno.ENOSPC if full else errno.EIO, str(error)) from None
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(0o666 & ~umask)
    sync_to_disk(path)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file's lock. Raises if another process holds it."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"another process is using `{path.parent}`", "wait for it, or stop it") from None
        yield


@contextmanager
def translated_disk_errors(path: Path) -> Iterator[None]:
    """Turn a full disk, a read-only folder and similar errors into one clear line."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UsageError(f"no room left on the disk while writing `{path}`", "free some space") from None
        if error.errno in NO_PLACE:
            raise UsageError(f"`{path}` cannot be written: {error.strerror}", "write elsewhere") from None
        raise RunError(f"writing `{path}` failed: {error.strerror or error}", "check the disk") from error
