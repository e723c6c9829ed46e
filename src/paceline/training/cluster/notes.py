"""Where do the members of a process group leave each other notes? At the run's shard, as PyTorch's stores have it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from paceline.training.cluster.messages import Note, Read
from paceline.training.cluster.shard_link import ShardLink
from paceline.wire.frames import LostConnectionError

POLL_SECONDS = 0.02
MEET_SECONDS = 30.0


class Notes:
    """The notes of one generation of a run."""

    def __init__(self, link: ShardLink, generation: int, recalled: Callable[[], bool]) -> None:
        self._link = link
        self._recalled = recalled
        self._prefix = f"{generation}/"
        self._lock = threading.Lock()
        self._is_closed = False

    def set(self, key: str, value: bytes) -> None:
        with self._lock:
            self._link.ask(Note(name=self._prefix + key, content=bytes(value)))

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._link.close()

    def find(self, key: str) -> bytes | None:
        with self._lock:
            # Threads of a group that is gone may still ask.
            found: bytes | None = None if self._is_closed else self._link.ask(Read(name=self._prefix + key)).content
        return found

    def get(self, key: str, seconds: float = MEET_SECONDS) -> bytes:
        deadline = time.monotonic() + seconds
        while (value := self.find(key)) is None:
            if self._recalled() or time.monotonic() > deadline:
                raise LostConnectionError(f"the other workers did not come to the group in {seconds:g} s")
            time.sleep(POLL_SECONDS)
        return value
