"""How are files written so that a crash, a full disk or another run loses nothing?"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ParamSpec

import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from paceline.errors import DataError, RunError, UsageError

P = ParamSpec("P")
MOST_BYTES = 512 << 20
# Nothing can be written there, whatever the disk is like.
NO_PLACE = (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)


def check_name(path: Path | str) -> None:
    """Raise unless manifests, settings and libraries can hold this path."""
    text = str(path)
    if "\0" in text or text != text.encode(errors="replace").decode():
        raise UsageError(f"`{text}` is not a possible path: it must be UTF-8 without null bytes", "use another name")


def refuse_existing(path: Path, hint: str = "choose another name, or remove it first") -> None:
    """Raise unless `path` is free: absent, or an empty folder."""
    check_name(path)
    is_empty = path.is_dir() and not any(path.iterdir())
    if not is_empty and (path.exists() or path.is_symlink()):
        raise UsageError(f"`{path}` exists already", hint)


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


def replace_file(path: Path, content: bytes, durable: bool = True) -> None:
    """Write `content` so that readers see the whole old file or the whole new one.

    Even after a crash of the machine, if it is `durable`, which takes a disk some milliseconds.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        with translated_disk_errors(path):
            # In another user's folder, it may be a link to any file of this user.
            temporary.unlink(missing_ok=True)
            with temporary.open("xb") as file:
                file.write(content)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            temporary.replace(path)
            if durable:
                sync_to_disk(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def new_path(path: Path) -> Iterator[Path]:
    """A place for a new file or folder, which becomes `path` when it is complete; after an error, nothing is left."""
    refuse_existing(path)
    if not path.parent.is_dir():
        raise UsageError(f"the folder `{path.parent}` does not exist", "make it first, or write elsewhere")
    # A folder of its own: in one that others may write to, a name that can be guessed may be a link.
    with translated_disk_errors(path), tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder:
        place = Path(folder, path.name)
        yield place
        if place.is_file():
            sync_to_disk(place)
        place.rename(path)
        sync_to_disk(path.parent)


def read_file(path: Path, hint: str, most_bytes: int = MOST_BYTES) -> bytes:
    """The content of a file that others may have made. `DataError` if it is a pipe or device, or far too large.

    A file of many gigabytes takes no room on the disk if nothing was ever written to it.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise DataError(f"`{path}` is not a regular file", hint)
        if found.st_size > most_bytes:
            size = f"{found.st_size / 1e9:.1f} GB"
            raise DataError(f"`{path}` has {size}; the limit is {most_bytes >> 20} MiB", hint)
        return file.read()


def refuse_planted(folder: Path) -> None:
    """Raise unless everything in a folder that is about to be written to is a folder or a regular file.

    In a folder that someone else made, a link may lead to any file of this user, and a pipe is waited for forever.
    """
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent, name)
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                what = "a link" if path.is_symlink() else "neither a folder nor a regular file"
                raise UsageError(f"`{path}` is {what}", "runs make none: remove it, or put the file itself there")


def open_regular(path: str, flags: int) -> int:
    """An `opener` for `open` in folders that others may have filled: it follows no link and waits for no pipe."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
    except OSError as error:
        # A link, a folder, and a pipe or socket that nobody reads.
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise
    raise UsageError(f"`{path}` is not a regular file", "remove it")


def append(path: Path, content: bytes) -> None:
    """Add all of `content` to a file, or, if the disk is full, nothing."""
    with translated_disk_errors(path), open(path, "ab", buffering=0, opener=open_regular) as file:
        size = file.tell()
        try:
            if file.write(content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            with suppress(OSError):
                file.truncate(size)
            raise


def without_disk_errors(show: Callable[P, None]) -> Callable[P, None]:
    """A function that shows something, on a terminal or in a log file: a full disk must not end what it shows."""

    def show_if_possible(*what: P.args, **named: P.kwargs) -> None:
        try:
            show(*what, **named)
        except BrokenPipeError:
            raise
        except OSError:
            pass

    return show_if_possible


def write_tensors(path: Path, tensors: dict[str, NDArray[Any]]) -> None:
    """Write a safetensors file and wait until it is on the disk. The user's umask applies."""
    with translated_disk_errors(path):
        # The umask cannot be read without changing it for all threads: a file that was just created shows it.
        path.touch()
        mode = stat.S_IMODE(path.stat().st_mode)
    try:
        safetensors.numpy.save_file(tensors, path)
    except SafetensorError as error:
        path.unlink(missing_ok=True)
        full = "No space left" in str(error) or "quota" in str(error)
        with translated_disk_errors(path):
            raise OSError(errno.ENOSPC if full else errno.EIO, str(error)) from None
    path.chmod(mode)
    sync_to_disk(path)


@contextmanager
def locked(path: Path, busy: str = "") -> Iterator[None]:
    """Hold a file's lock. Raises if another process holds it; `busy` says what that means."""
    with open(path, "rb", opener=open_regular) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = busy or f"another process is using `{path.parent}`"
            raise UsageError(f"{message}{_holder(path)}", "wait for it, or stop it") from None
        yield


def _holder(path: Path) -> str:
    """Which process holds a file's lock, in brackets; empty if the system does not say."""
    with suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            _, kind, _, _, process, file, *_ = line.split()
            if kind == "FLOCK" and file.rpartition(":")[2] == str(path.stat().st_ino):
                return f" (process {process})"
    return ""


def refuse_running(run: Path) -> None:
    """Raise if a process is still training in this run folder."""
    if (run / "config.toml").is_file():
        with locked(run / "config.toml", f"`{run}` is still training"):
            pass


@contextmanager
def translated_disk_errors(path: Path) -> Iterator[None]:
    """Turn a full disk, a read-only folder and similar errors into one clear line."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UsageError(f"no room left on the disk while writing `{path}`", "free some space") from None
        if error.errno in NO_PLACE:
            why = os.strerror(error.errno or 0)
            raise UsageError(f"`{path}` cannot be written: {why}", "make the folder writable, or use another") from None
        raise RunError(f"writing `{path}` failed: {error.strerror or error}", "check the disk") from error
