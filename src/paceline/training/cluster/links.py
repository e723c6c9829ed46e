"""How does a worker talk to a shard, when connections may be cut and replies lost?

A link keeps what was not answered yet. When its connection breaks, or nothing comes for `SILENCE_SECONDS` (a shard that
holds a reply back says so every second), it connects again and asks the same; the shard knows which pushes it has had.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.config import WireConfig
from paceline.errors import RunError
from paceline.training.cluster.messages import Begin, FromShard, Join, Joined, decode, encode
from paceline.training.cluster.rations import RecalledError
from paceline.training.cluster.steps import Values, read_held, read_reply, step_parts
from paceline.wire.coding import Floats, KeyWriter, write_values
from paceline.wire.connection import Connection, connect
from paceline.wire.frames import BadFrameError, Kind, WireError
from paceline.wire.tls import Tls

SILENCE_SECONDS = 5.0
AWAY_SECONDS = 20.0
# Replies mostly come sooner than a sleeping process is woken up.
SPIN_SECONDS = 0.0003
RETRY_SECONDS = 0.1


class Ask(NamedTuple):
    """What goes into a STEP frame: the push of an earlier batch, and the indices that `batch` pulls."""

    flags: int
    batch: int
    trained: int
    losses: float
    rows: int
    pushed: Floats
    indices: NDArray[Any]


class Link:
    """A worker's way to one shard; `doing` says in words what it waits for."""

    def __init__(self, shard: int, rank: int, begin: Begin, token: bytes, tls: Tls | None, wire: WireConfig,
                 recalled: Callable[[], bool]) -> None:  # fmt: skip
        self.doing = f"waits for shard {shard}"
        self.applied = 0
        self._name = f"shard {shard} at {begin.shards[shard]}"
        self._waits = self.doing
        self._address = begin.shards[shard]
        self._join = Join(rank=rank, incarnation=begin.incarnation, generation=begin.generation)
        self._token = token
        self._tls = tls
        self._wire = wire
        self._recalled = recalled
        self._keys: KeyWriter
        self._connection: Connection | None = None
        self._asked: deque[Ask] = deque()
        self._bytes_before = (0, 0)
        self._looked_before = 0
        self._bytes_told = (0, 0)
        self._connect()

    @property
    def num_bytes(self) -> tuple[int, int]:
        """Bytes sent and received, on all connections so far."""
        sent, received = self._bytes_before
        connection = self._connection
        return (sent, received) if connection is None else (
            sent + connection.bytes_sent, received + connection.bytes_received
        )  # fmt: skip

    @property
    def looked(self) -> int:
        """Nanoseconds of the processor spent on looking for replies, on all connections so far."""
        connection = self._connection
        return self._looked_before + (0 if connection is None else connection.looked)

    @property
    def socket(self) -> socket.socket | None:
        """The connection's, while there is one."""
        connection = self._connection
        return None if connection is None else connection.socket

    def bytes_since(self) -> tuple[int, int]:
        """Bytes sent and received since this was last asked."""
        before, self._bytes_told = self._bytes_told, self.num_bytes
        return self._bytes_told[0] - before[0], self._bytes_told[1] - before[1]

    def send(self, ask: Ask) -> None:
        """Ask the shard; what `ask` holds must stay as it is until `receive` has returned for its batch."""
        self._asked.append(ask)
        try:
            self._send(ask)
        except WireError:
            self._connect()

    def receive(self, batch: int) -> Values:
        """The reply to `batch`, valid until the next call."""
        self.doing = self._waits
        while True:
            try:
                connection = self._connection
                assert connection is not None
                frame = connection.receive(SILENCE_SECONDS, SPIN_SECONDS)
                if frame.kind == Kind.HELD:
                    self.doing = f"{self._waits}, which waits for worker {', '.join(map(str, read_held(frame)))}"
                    if self._recalled():
                        raise RecalledError
                    continue
                if frame.kind != Kind.VALUES:
                    raise BadFrameError(f"a {frame.kind.name} frame from {self._name}")
                reply = read_reply(frame)
                if reply.batch > batch:
                    raise BadFrameError(f"{self._name} did not answer batch {batch}")
            except WireError:
                self._connect()
                continue
            while self._asked and self._asked[0].batch <= reply.batch:
                self._asked.popleft()
            if reply.batch == batch:
                return reply

    def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._bytes_before, self._looked_before = self.num_bytes, self.looked
            self._connection.close()
            self._connection = None

    def _send(self, ask: Ask) -> None:
        connection = self._connection
        assert connection is not None
        coding, keys = self._keys.write(ask.indices)
        parts = step_parts(
            ask.batch, ask.trained, ask.losses, ask.rows, write_values(ask.pushed, self._wire.values), len(ask.pushed),
            len(ask.indices), coding, keys,
        )  # fmt: skip
        connection.send(Kind.STEP, ask.flags, *parts)

    def _connect(self) -> None:
        """Connect, again if need be, and ask what was not answered; `RunError` where that fails for too long."""
        since = time.monotonic()
        while True:
            self.close()
            if self._recalled():
                raise RecalledError
            self.doing = f"connects to {self._name}"
            try:
                self._connection = connect(self._address, self._token, self._tls)
                self._keys = KeyWriter(self._wire.key_deltas, self._wire.key_cache)
                self._connection.send(Kind.MESSAGE, 0, encode(self._join))
                joined = decode(self._connection.receive(SILENCE_SECONDS), FromShard)
                if not isinstance(joined, Joined):
                    raise BadFrameError(f"{self._name} does not let worker {self._join.rank} join")
                self.applied = joined.applied
                for ask in self._asked:
                    self._send(ask)
                return
            except WireError as error:
                if time.monotonic() - since > AWAY_SECONDS:
                    raise RunError(f"{self._name} cannot be reached: {error.message}", error.hint) from None
                time.sleep(RETRY_SECONDS)


EMPTY = np.empty(0, np.float32)
