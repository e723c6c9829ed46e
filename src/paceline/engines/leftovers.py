"""What is left of a Ray that was started here when its owner is killed? Nothing.

`OwnFolder` is the folder of such a Ray. A small process watches its owner: `python leftovers.py FOLDER PID`. When the
owner is killed, that process ends all of Ray's processes that have files open in the folder, and removes it. If the
watching process was killed too, `remove_abandoned` does the same at the next start.

This file needs the standard library only, so that the watching process starts at once and stays small.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

PREFIX = "paceline-ray-"
OWNER = "owner"
POLL_SECONDS = 1.0
PATIENCE_SECONDS = 10.0
# For how long a process of Ray that is about to end may make its folder again.
AGAIN_SECONDS = 5.0
ENDING: list[subprocess.Popen[bytes]] = []
"""Watching processes whose folders were removed."""


class OwnFolder:
    """A new folder for a Ray of our own, under `tempfile.gettempdir()`. Only this user can look into it.

    Ray opens its own folder to everyone, so that one is `ray`, inside.
    """

    def __init__(self) -> None:
        remove_abandoned(Path(tempfile.gettempdir()))
        # Locked before the folder has its name: one without an owner, or whose owner is not locked, is abandoned.
        unnamed = Path(tempfile.mkdtemp(prefix=f".{PREFIX}"))
        self._owner = (unnamed / OWNER).open("wb")
        fcntl.flock(self._owner, fcntl.LOCK_EX)
        self.path = unnamed.rename(unnamed.with_name(unnamed.name[1:]))
        self.ray = self.path / "r"
        # Not `-m`: that would import all of paceline. Its own session: a terminal's Ctrl-C is not for it.
        self._watching = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(self.path), str(os.getpid())], start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
        )  # fmt: skip

    def end_processes(self) -> None:
        """End all of Ray's processes that have files open in the folder."""
        end_users_of(self.path)

    def remove(self) -> None:
        """Remove the folder, and end what is left of Ray. The watching process looks again for a few seconds more."""
        clean_up(self.path)
        self._watching.terminate()
        # Those that have ended since are asked for, so that no zombies stay.
        ENDING[:] = [process for process in (*ENDING, self._watching) if process.poll() is None]
        self._owner.close()


def remove_abandoned(parent: Path) -> None:
    """Remove the folders of owners that were killed."""
    for folder in parent.glob(f"{PREFIX}*"):
        # The parent is open to everyone: what is there could be another user's, a link or a pipe, or locked.
        with suppress(OSError):
            if not _is_ours(folder.lstat(), stat.S_ISDIR):
                continue
            if not os.path.lexists(folder / OWNER):
                # A process of Ray made it again, just before it ended.
                clean_up(folder)
                continue
            with open(os.open(folder / OWNER, os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as file:
                if _is_ours(os.fstat(file.fileno()), stat.S_ISREG):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    clean_up(folder)


def _is_ours(found: os.stat_result, is_kind: Callable[[int], bool]) -> bool:
    """Whether this user made a file or folder of this kind."""
    return is_kind(found.st_mode) and found.st_uid == os.getuid()


def clean_up(folder: Path) -> None:
    """End all of Ray's processes that have files open in a folder, and remove it."""
    end_users_of(folder)
    shutil.rmtree(folder, ignore_errors=True)


def end_users_of(folder: Path) -> None:
    """End all of Ray's processes that have files open in a folder."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (found := list(_users_of(folder))) and time.monotonic() < deadline:
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _users_of(folder: Path) -> Iterator[int]:
    """Ray's processes that have files open in a folder, where the system tells."""
    for process in Path("/proc").glob("[0-9]*"):
        # Processes of other users cannot be looked into, and any may have ended meanwhile.
        with suppress(OSError):
            command = (process / "cmdline").read_bytes()
            is_of_ray = command.startswith(b"ray::") or b"/ray/" in command
            if (
                is_of_ray
                and int(process.name) != os.getpid()
                and any(os.readlink(file).startswith(f"{folder}/") for file in (process / "fd").iterdir())
            ):
                yield int(process.name)


def watch(folder: Path, owner: int) -> None:
    """Wait until the owner, our parent, has ended or says that it is done (SIGTERM); then clean up."""
    done = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: done.set())
    while os.getppid() == owner and not done.wait(POLL_SECONDS):
        pass
    deadline = time.monotonic() + AGAIN_SECONDS
    while time.monotonic() < deadline:
        clean_up(folder)
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    watch(Path(sys.argv[1]), int(sys.argv[2]))
