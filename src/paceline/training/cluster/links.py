"""How does a worker talk to shards, when connections may be cut and replies lost?

A `StepLink` keeps what was not answered yet. When its connection breaks, or nothing comes for `SILENCE_SECONDS` (a
shard that holds a reply back says so every second), it connects again and asks the same; the shard knows which pushes
it has had. `Links` are a worker's links to all shards, of whatever kind.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.errors import RunError
from paceline.processes.messages import decode, encode
from paceline.settings import WireConfig
from paceline.training.cluster.batch_queue import RecalledError
from paceline.training.cluster.messages import Begin, FromShard, Join, Joined, RoleSpec
from paceline.training.cluster.steps import ValuesFrame, read_held, read_reply, step_parts
from paceline.wire.coding import Floats, KeyWriter, write_values
from paceline.wire.connection import Connection, connect
from paceline.wire.frames import BadFrameError, Kind, WireError

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


class Links:
    """A worker's links to all shards, those that it had before included in what is counted.

    A link has `num_bytes`, `spun`, `socket`, `close`, `doing`, what it waits for in words, and `applied`, the worker's
    last batch that the shard has.
    """

    def __init__(self) -> None:
        self.all: list[Any] = []
        self.activity = ""
        """What the worker does over them, if no link says that it waits."""
        self._bytes_before = (0, 0)
        self._spun_before = 0

    def replace(self, num_shards: int, make: Callable[[int], Any]) -> None:
        """Hang up, and connect to all shards."""
        self._bytes_before, self._spun_before = self.num_bytes, self.spun
        for link in self.all:
            link.close()
        self.all = []
        for shard in range(num_shards):
            self.all.append(make(shard))
            self.all[-1].doing = ""

    @property
    def next_batch(self) -> int:
        """The batch to go on with: the first that some shard does not have."""
        return 1 + min(int(link.applied) for link in self.all)

    @property
    def doing(self) -> str:
        """What the worker waits for, or does."""
        return next((link.doing for link in self.all if link.doing), self.activity)

    @property
    def num_bytes(self) -> tuple[int, int]:
        """Bytes sent and received so far."""
        sent, received = self._bytes_before
        for link in self.all:
            more = link.num_bytes
            sent, received = sent + more[0], received + more[1]
        return sent, received

    @property
    def spun(self) -> int:
        """Nanoseconds of processor time spent on spinning for replies so far."""
        return self._spun_before + sum(int(link.spun) for link in self.all)

    @property
    def sockets(self) -> dict[str, socket.socket]:
        """The connections that stand now, by name."""
        found = {f"shard {shard}": link.socket for shard, link in enumerate(self.all)}
        return {name: connected for name, connected in found.items() if connected is not None}


class StepLink:
    """A link that asks again what was not answered."""

    def __init__(
        self, shard: int, begin: Begin, spec: RoleSpec, wire: WireConfig, recalled: Callable[[], bool]
    ) -> None:
        self.doing = f"waits for shard {shard}"
        self.applied = 0
        self._name = f"shard {shard} at {begin.shards[shard]}"
        self._waits = self.doing
        self._address = begin.shards[shard]
        self._join = Join(rank=spec.rank, incarnation=begin.incarnation, generation=begin.generation)
        self._spec = spec
        self._wire = wire
        self._recalled = recalled
        self._keys: KeyWriter
        self._connection: Connection | None = None
        self._asked: deque[Ask] = deque()
        self._bytes_before = (0, 0)
        self._spun_before = 0
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
    def spun(self) -> int:
        """Nanoseconds of processor time spent on spinning for replies, on all connections so far."""
        connection = self._connection
        return self._spun_before + (0 if connection is None else connection.spun)

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

    def receive(self, batch: int) -> ValuesFrame:
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
            self._bytes_before, self._spun_before = self.num_bytes, self.spun
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
        """Connect, again if need be, and ask what was not answered; `RunError` if that fails for too long."""
        since = time.monotonic()
        while True:
            self.close()
            if self._recalled():
                raise RecalledError
            self.doing = f"connects to {self._name}"
            try:
                self._connection = connect(self._address, self._spec.token, self._spec.tls)
                self._keys = KeyWriter(self._wire.key_deltas)
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
