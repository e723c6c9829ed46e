"""How does a worker talk to shards, when connections may be cut and replies lost?

A `ShardEndpoint` is the worker's end of a connection to one shard, which can be made again. A `StepLink` keeps what
was not answered yet. When its connection breaks, or nothing comes for `SILENCE_SECONDS` (a shard that holds a reply
back says so every second), it connects again and asks the same; the shard knows which pushes it has had. `Links` are a
worker's links to all shards, by steps or by pieces (`piece_links.py`).
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from paceline.errors import RunError
from paceline.processes.messages import decode, encode
from paceline.settings import WireConfig
from paceline.training.cluster.batch_queue import RecalledError
from paceline.training.cluster.messages import Begin, FromShard, Join, Joined, RoleSpec
from paceline.training.cluster.steps import Ask, ValuesFrame, read_held, read_reply, step_parts
from paceline.wire.coding import KeyWriter
from paceline.wire.connection import connect
from paceline.wire.frames import BadFrameError, Frame, Kind, SilentPeerError, WireError

SILENCE_SECONDS = 5.0
AWAY_SECONDS = 20.0
# Replies mostly come sooner than a sleeping process is woken up.
SPIN_SECONDS = 0.0003
RETRY_SECONDS = 0.1
# A lost shard is known to the coordinator, and so to its workers, after this many seconds.
GIVE_UP_SECONDS = 12.0
POLL_SECONDS = 0.05


class Traffic(NamedTuple):
    """Bytes sent and received, and nanoseconds of processor time spent on spinning for replies."""

    sent: int = 0
    received: int = 0
    spun: int = 0


class ShardEndpoint:
    """A worker's connection to one shard, which may be made again; `doing` is what it waits for, in words."""

    def __init__(self, shard: int, begin: Begin, spec: RoleSpec, recalled: Callable[[], bool], gradient: str) -> None:
        """`gradient`: where gradients are, for a shard that sees the same memory."""
        self.shard = shard
        self.name = f"shard {shard} at {begin.shards[shard]}"
        self.waits = f"waits for shard {shard}"
        self.doing = ""
        self.recalled = recalled
        self.applied = 0
        """The worker's last batch that the shard has."""
        self._address = begin.shards[shard]
        self._spec = spec
        self._join = Join(
            rank=spec.rank, incarnation=begin.incarnation, generation=begin.generation, gradient=gradient
        )  # fmt: skip
        self.is_open = False
        self._before = Traffic()

    def connect(self) -> Joined:
        """Connect, again if need be, and join."""
        self.close()
        self.doing = f"connects to {self.name}"
        self.connection = connect(self._address, self._spec.token, self._spec.tls, mac=self._spec.mac)
        self.is_open = True
        self.connection.send(Kind.MESSAGE, 0, encode(self._join))
        joined = decode(self.connection.receive(SILENCE_SECONDS), FromShard)
        if not isinstance(joined, Joined):
            raise BadFrameError(f"{self.name} does not let worker {self._join.rank} join")
        self.applied = joined.applied
        return joined

    def receive(self, spin_seconds: float = 0.0) -> Frame:
        """The next frame, which is valid until the next call. Notices of a reply that is held back end in `doing`."""
        try:
            while (frame := self.connection.receive(SILENCE_SECONDS, spin_seconds)).kind == Kind.HELD:
                ranks = ", ".join(map(str, read_held(frame)))
                self.doing = f"{self.waits}, which " + (f"waits for worker {ranks}" if ranks else "is being saved")
                if self.recalled():
                    raise RecalledError
        except SilentPeerError:
            if self.recalled():
                raise RecalledError from None
            raise
        return frame

    @property
    def traffic(self) -> Traffic:
        """Over all connections so far."""
        if not self.is_open:
            return self._before
        (sent, received, spun), stream = self._before, self.connection.stream
        return Traffic(sent + stream.bytes_sent, received + stream.bytes_received, spun + self.connection.spinner.spun)

    def close(self) -> None:
        """Hang up."""
        if self.is_open:
            self._before, self.is_open = self.traffic, False
            self.connection.close()


class Links:
    """A worker's links to all shards, those that it had before included in what is counted."""

    def __init__(self, spec: RoleSpec, recalled: Callable[[], bool]) -> None:
        self.all: list[Any] = []
        self.activity = ""
        """What the worker does over them, if no link says that it waits."""
        self._spec = spec
        self._recalled = recalled
        self._endpoints: list[ShardEndpoint] = []
        self._before = Traffic()

    def replace(self, begin: Begin, make: Callable[[ShardEndpoint], Any], gradient: str = "") -> int:
        """Hang up, and connect to all shards; `make` makes a link of an endpoint.

        Returns the batch to continue with: the first that some shard does not have.
        """
        self._before = self.traffic
        for endpoint in self._endpoints:
            endpoint.close()
        self.all = []
        self._endpoints = [
            ShardEndpoint(shard, begin, self._spec, self._recalled, gradient) for shard in range(len(begin.shards))
        ]
        for endpoint in self._endpoints:
            self.all.append(make(endpoint))
            endpoint.doing = ""
        return 1 + min(endpoint.applied for endpoint in self._endpoints)

    def recalled_in_time(self, error: WireError) -> bool:
        """Wait until the coordinator recalls this worker, which has lost a connection; False if it does not.

        If a shard cannot be reached, it is mostly lost, and the coordinator will say so. Otherwise this worker must
        end, so that all return to a checkpoint.
        """
        self.activity = f"waits to be called back: {error.message}"
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while not self._recalled() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        self.activity = ""
        return self._recalled()

    @property
    def doing(self) -> str:
        """What the worker waits for, or does."""
        return next((endpoint.doing for endpoint in self._endpoints if endpoint.doing), self.activity)

    @property
    def traffic(self) -> Traffic:
        """Over all connections so far."""
        return Traffic(*map(sum, zip(self._before, *(endpoint.traffic for endpoint in self._endpoints), strict=True)))

    @property
    def sockets(self) -> dict[str, socket.socket]:
        """The connections that stand now, by name."""
        standing = [endpoint for endpoint in self._endpoints if endpoint.is_open]
        return {f"shard {endpoint.shard}": endpoint.connection.stream.socket for endpoint in standing}


class StepLink:
    """A link that asks again what was not answered."""

    def __init__(self, endpoint: ShardEndpoint, wire: WireConfig) -> None:
        self._endpoint = endpoint
        self._wire = wire
        self._asked: deque[Ask] = deque()
        self._connect()

    @property
    def moved(self) -> tuple[int, int]:
        """Bytes sent and received until now."""
        traffic = self._endpoint.traffic
        return traffic.sent, traffic.received

    def send(self, ask: Ask) -> None:
        """Ask the shard; what `ask` holds must stay as it is until `receive` has returned for its batch."""
        self._asked.append(ask)
        try:
            self._send(ask)
        except WireError:
            self._connect()

    def receive(self, batch: int) -> ValuesFrame:
        """The reply to `batch`, valid until the next call."""
        endpoint = self._endpoint
        endpoint.doing = endpoint.waits
        while True:
            try:
                frame = endpoint.receive(SPIN_SECONDS)
                if frame.kind != Kind.VALUES:
                    raise BadFrameError(f"a {frame.kind.name} frame from {endpoint.name}")
                reply = read_reply(frame)
                if reply.batch > batch:
                    raise BadFrameError(f"{endpoint.name} did not answer batch {batch}")
            except WireError:
                self._connect()
                continue
            while self._asked and self._asked[0].batch <= reply.batch:
                self._asked.popleft()
            if reply.batch == batch:
                endpoint.doing = ""
                return reply

    def _send(self, ask: Ask) -> None:
        self._endpoint.connection.send(Kind.STEP, ask.flags, *step_parts(ask, self._wire.values, self._keys))

    def _connect(self) -> None:
        """Connect, again if need be, and ask what was not answered; `RunError` if that fails for too long."""
        endpoint, since = self._endpoint, time.monotonic()
        while True:
            if endpoint.recalled():
                raise RecalledError
            try:
                endpoint.connect()
                self._keys = KeyWriter(self._wire.key_deltas)
                for ask in self._asked:
                    self._send(ask)
                return
            except WireError as error:
                if time.monotonic() - since > AWAY_SECONDS:
                    raise RunError(f"{endpoint.name} cannot be reached: {error.message}", error.hint) from None
                time.sleep(RETRY_SECONDS)
