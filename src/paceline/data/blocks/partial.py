"""How is a folder written under a temporary name, and what happens to one whose writer was killed?

The folder of `NAME` is `.NAME.partial-` and eight hexadecimal digits beside it. Its writer holds a lock on a file
inside, which the system releases when the process ends, however it ends. So a folder whose lock can be taken has no
writer any more.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import uuid
from contextlib import ExitStack, suppress
from pathlib import Path

LOCK_NAME = ".lock"
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # of file systems without locks


class PartialFolder:
    """The folder that becomes `out` when it is whole; `path` is where it is until then."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.path = out.with_name(f".{out.name}.partial-{uuid.uuid4().hex[:8]}")
        self._lock: int | None = None

    def make(self) -> None:
        """Make the folder and lock it; remove those that killed writers of the same `out` left."""
        self.out.parent.mkdir(parents=True, exist_ok=True)
        pattern = re.compile(re.escape(f".{self.out.name}.partial-") + "[0-9a-f]{8}")
        for folder in self.out.parent.iterdir():
            if pattern.fullmatch(folder.name) and folder.is_dir():
                _remove_if_left(folder)
        while self._lock is None:
            self.path.mkdir(exist_ok=True)
            try:
                self._lock = _take_lock(self.path, 0)
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                return  # nobody else can take the lock either, so nobody removes the folder

    def move_into_place(self) -> None:
        """Rename the folder to `out`, and let go of the lock."""
        self.path.rename(self.out)
        # Only now: without its lock the folder would look like a leftover.
        (self.out / LOCK_NAME).unlink(missing_ok=True)
        self._release()

    def remove(self) -> None:
        """Remove the folder, if it is still there under its temporary name."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _remove_if_left(folder: Path) -> None:
    with suppress(OSError):  # locked by its writer, not ours to remove, or gone already
        lock = _take_lock(folder, fcntl.LOCK_NB)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _take_lock(folder: Path, flags: int) -> int | None:
    """The lock on a folder, or None if someone removed the folder meanwhile, taking it for a leftover."""
    path = folder / LOCK_NAME
    with suppress(FileNotFoundError), ExitStack() as closing:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        closing.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX | flags)
        if os.path.samestat(os.fstat(lock), os.stat(path)):
            closing.pop_all()
            return lock
    return None
