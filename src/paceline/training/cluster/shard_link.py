"""How does the coordinator, or a worker between two steps, ask a shard for things?"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from paceline.processes.messages import decode, encode
from paceline.training.cluster.messages import Copied, Copy, Count, Counted, FetchPart, FromShard, ToShard
from paceline.training.cluster.shard import KINDS
from paceline.training.cluster.steps import chunk_parts, read_numbers
from paceline.wire.connection import connect
from paceline.wire.frames import Frame, Kind, LostConnectionError, SilentPeerError, WireError
from paceline.wire.tls import Tls

SILENCE_SECONDS = 10.0
SOON_SECONDS = 1.0
POLL_SECONDS = 0.2
CHUNK_BYTES = 4 << 20


class ShardLink:
    """A connection to one shard. Waiting for it ends in a `LostConnectionError` once `is_lost`."""

    def __init__(self, address: str, token: bytes, tls: Tls | None, is_lost: Callable[[], bool],
                 mac: bool = False) -> None:  # fmt: skip
        self._is_lost = is_lost
        self._connect = partial(connect, address, token, tls, mac=mac)
        self._connection = self._connect()

    def close(self) -> None:
        self._connection.close()

    def ask(self, message: ToShard) -> Any:
        """Send a message and wait for its answer."""
        return decode(self._exchange(Kind.MESSAGE, 0, encode(message)), FromShard)

    def _exchange(self, kind: Kind, flags: int, *parts: Any) -> Frame:
        """Send a frame and wait for its answer; once more over a new connection if that is cut.

        Everything that is asked of a shard in this way may be asked twice.
        """
        try:
            self._connection.send(kind, flags, *parts)
            return self._receive()
        except (LostConnectionError, SilentPeerError):
            self._connection.close()
            if self._is_lost():
                raise
            self._connection = self._connect()
            self._connection.send(kind, flags, *parts)
            return self._receive()

    def _receive(self) -> Frame:
        deadline = time.monotonic() + SILENCE_SECONDS
        while True:
            try:
                return self._connection.receive(POLL_SECONDS)
            except SilentPeerError:
                if self._is_lost():
                    raise LostConnectionError(f"the shard at {self._connection.peer} is lost") from None
                if time.monotonic() > deadline:
                    raise

    def count_soon(self) -> Counted | None:
        """What the shard has counted, if it says so soon: the control server finds out whether it is lost."""
        try:
            self._connection.send(Kind.MESSAGE, 0, encode(Count()))
            counted: Counted = decode(self._connection.receive(SOON_SECONDS), FromShard)
        except WireError:
            self._connection.close()
            return None
        return counted

    def order_copy(self, at: int) -> None:
        """Order a copy at clock `at`, -1 for now; returns when the shard knows of it."""
        # Over this very connection: the order goes with it, and the caller begins again.
        self._connection.send(Kind.MESSAGE, 0, encode(Copy(at=at)))
        decode(self._receive(), FromShard)

    def copied(self, give_up: Callable[[], bool]) -> Copied:
        """Wait until the copy that was ordered is made; `LostConnectionError` if `give_up` says so."""
        while True:
            try:
                copied: Copied = decode(self._connection.receive(POLL_SECONDS), FromShard)
                return copied
            except SilentPeerError:
                if give_up():
                    raise LostConnectionError("the segment ended before the copy") from None

    def fetch(self, what: Literal["values", "copy"], of: str, out: NDArray[np.float32], rows: int = 0) -> None:
        """Fill `out` [n, numbers] with all values of one kind of parameters after `rows` rows, or with the copy."""
        step = max(1, CHUNK_BYTES // (4 * out.shape[1]))
        for start in range(0, len(out), step):
            count = min(step, len(out) - start)
            message = FetchPart(what=what, of=of, start=start, count=count, rows=rows)
            numbers = read_numbers(self._exchange(Kind.MESSAGE, 0, encode(message)), count * out.shape[1])
            out[start : start + count] = numbers.reshape(count, -1)

    def load(self, of: str, states: NDArray[np.float32]) -> None:
        """Give the shard its states [n, width] of a kind of parameters."""
        step = max(1, CHUNK_BYTES // (4 * states.shape[1]))
        for start in range(0, len(states), step):
            part = np.ascontiguousarray(states[start : start + step])
            decode(self._exchange(Kind.CHUNK, KINDS.index(of), *chunk_parts(start, part)), FromShard)
