"""Where do the members of a process group leave each other notes? At the run's shard, as PyTorch's stores have it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from paceline.processes.messages import decode, encode
from paceline.training.cluster.messages import FromShard, Note, Noted, Read
from paceline.wire.connection import Connection
from paceline.wire.frames import BadFrameError, Kind, LostConnectionError

POLL_SECONDS = 0.02
MEET_SECONDS = 30.0
SILENCE_SECONDS = 5.0


class Notes:
    """The notes of one generation of a run."""

    def __init__(self, connection: Connection, generation: int, recalled: Callable[[], bool]) -> None:
        self._connection = connection
        self._recalled = recalled
        self._prefix = f"{generation}/"
        self._lock = threading.Lock()
        self._is_closed = False

    def set(self, key: str, value: bytes) -> None:
        with self._lock:
            self._connection.send(Kind.MESSAGE, 0, encode(Note(name=self._prefix + key, content=bytes(value))))

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._connection.close()

    def find(self, key: str) -> bytes | None:
        with self._lock:
            if self._is_closed:
                return None  # threads of a group that is gone may still ask
            self._connection.send(Kind.MESSAGE, 0, encode(Read(name=self._prefix + key)))
            noted = decode(self._connection.receive(SILENCE_SECONDS), FromShard)
        if not isinstance(noted, Noted):
            raise BadFrameError(f"a {type(noted).__name__} of {self._connection.peer} where a note was expected")
        return noted.content

    def get(self, key: str, seconds: float = MEET_SECONDS) -> bytes:
        deadline = time.monotonic() + seconds
        while (value := self.find(key)) is None:
            if self._recalled() or time.monotonic() > deadline:
                raise LostConnectionError(f"the other workers did not come to the group in {seconds:g} s")
            time.sleep(POLL_SECONDS)
        return value
