"""Where do the roles of a run report, and how is it known that one is gone?

The desk is the coordinator's server, on a thread of its own. Each role is connected to it for as long as it lives and
beats once a second. A role whose connection breaks, or that is silent for `SILENCE_SECONDS`, is lost. What the
coordinator must act on comes out as events; requests for rows are answered here.
"""

from __future__ import annotations

import platform
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from paceline.telemetry.records import AnyRecord, LeftOut, NodeProbe, ShardChunk, WorkerChunk
from paceline.training.cluster.messages import (
    Beat,
    Failed,
    Grant,
    Hello,
    Idle,
    Message,
    Ready,
    Report,
    Take,
    ToCoordinator,
    decode,
    encode,
)
from paceline.version import VERSION
from paceline.wire.frames import BadFrameError, Frame, Kind
from paceline.wire.server import Peer, Server

SILENCE_SECONDS = 5.0
TICK_SECONDS = 0.5
# Time that this process itself was not running (a laptop asleep, a debugger) is no silence of others.
MOST_SECONDS_A_TICK = 1.0


class Loss(NamedTuple):
    """A role that is lost: since when (`time.monotonic`), why, and whether its process may still be there."""

    since: float
    because: str
    silent: bool


class Role:
    """A worker or shard as the coordinator knows it, over all its incarnations."""

    def __init__(self, role: str, rank: int) -> None:
        self.role = role
        self.rank = rank
        self.node = ""
        self.address = ""
        self.pid = 0
        self.incarnation = -1
        self.ready = False  # the coordinator's main thread says so, when it hears of it
        self.peer: Peer | None = None
        self.doing = "has not started"
        self.silent_seconds = 0.0
        # For the coordinator's main thread: since when it is away, and since when that is being mended.
        self.lost: Loss | None = None
        self.away_since = 0.0
        self.peak_memory_bytes = 0
        self._bytes = (0, 0)
        self._bytes_before = (0, 0)

    @property
    def name(self) -> str:
        """How a person would call it."""
        return f"{self.role} {self.rank}" + (f" on node {self.node}" if self.node else "")

    @property
    def num_bytes(self) -> tuple[int, int]:
        """Bytes sent and received, by all incarnations."""
        return self._bytes_before[0] + self._bytes[0], self._bytes_before[1] + self._bytes[1]

    def begin(self, hello: Hello, peer: Peer) -> None:
        """A new incarnation."""
        self._bytes_before, self._bytes = self.num_bytes, (0, 0)
        self.incarnation += 1
        self.peer, self.node, self.pid = peer, hello.node, hello.pid
        self.silent_seconds, self.doing = 0.0, "starts"

    def beat(self, beat: Beat) -> None:
        self.doing = beat.doing
        self._bytes = (beat.bytes_sent, beat.bytes_received)
        self.peak_memory_bytes = max(self.peak_memory_bytes, beat.memory_bytes)


class Event(NamedTuple):
    """Something to act on: `what` is one of `ready`, `idle`, `lost`, `failed`."""

    what: str
    role: Role
    detail: Any = None


# Rank, leg and batch → rows; None where that leg is over.
TakeRows = Callable[[int, int, int], Grant | None]


class Desk:
    """The coordinator's side of all lifelines."""

    def __init__(self, server: Server, roles: list[Role], take: TakeRows, name_node: Callable[[str], str]) -> None:
        self.server = server
        # No `SimpleQueue`: one that a signal interrupts may wait for ever, whatever its time limit.
        self.events: queue.Queue[Event] = queue.Queue()
        self._roles = {(role.role, role.rank): role for role in roles}
        self._take = take
        self._name_node = name_node
        self._last_tick = time.monotonic()
        self._records: deque[AnyRecord] = deque()
        # By node, which role's probes are kept: one is enough.
        self._probing: dict[str, Role] = {}
        self._thread = threading.Thread(target=self._serve, name="paceline-desk", daemon=True)
        self._thread.start()

    def say(self, role: Role, message: Message) -> None:
        """Send a message to a role, if it is there. From any thread."""
        content = encode(message)

        def send() -> None:
            if role.peer is not None:
                role.peer.send(Kind.MESSAGE, 0, content)

        self.server.call_soon(send)

    def take_records(self) -> list[AnyRecord]:
        """What roles have reported since the last time, in the coordinator's time (`time.perf_counter`)."""
        return [self._records.popleft() for _ in range(len(self._records))]

    def close(self) -> None:
        """Hang up on all roles, which then end."""
        self.server.stop()
        self._thread.join()
        self.server.close()

    def _serve(self) -> None:
        try:
            self.server.serve(self, TICK_SECONDS)
        except Exception as error:  # noqa: BLE001 (whatever it is, the run must not wait for a desk that is closed)
            failed = Failed(kind="run", message=f"the coordinator's desk failed: {error}", hint="")
            self.events.put(Event("failed", next(iter(self._roles.values())), failed))

    # -- what the server calls

    def opened(self, peer: Peer) -> None:
        peer.tag = None

    def received(self, peer: Peer, frame: Frame) -> None:
        message = decode(frame, ToCoordinator)
        if isinstance(message, Hello):
            self._greet(peer, message)
            return
        role = peer.tag
        if not isinstance(role, Role) or role.peer is not peer:
            raise BadFrameError(f"a message from {peer.address}, which is no role of this run now")
        role.silent_seconds = 0.0
        match message:
            case Beat():
                role.beat(message)
            case Report():
                self._keep_records(role, message)
            case Take(leg=leg, batch=batch):
                grant = self._take(role.rank, leg, batch)
                if grant is not None:
                    peer.send(Kind.MESSAGE, 0, encode(grant))
            case Idle(leg=leg):
                self.events.put(Event("idle", role, leg))
            case Ready():
                role.address = message.address
                self.events.put(Event("ready", role, message.data))
            case Failed():
                self.events.put(Event("failed", role, message))

    def closed(self, peer: Peer) -> None:
        role = peer.tag
        if isinstance(role, Role) and role.peer is peer:
            self._lose(role, "its process ended", silent=False)

    def tick(self) -> None:
        now = time.monotonic()
        passed, self._last_tick = min(now - self._last_tick, MOST_SECONDS_A_TICK), now
        for role in self._roles.values():
            if role.peer is None:
                continue
            role.silent_seconds += passed
            if role.silent_seconds > SILENCE_SECONDS:
                peer = role.peer
                self._lose(role, f"it gave no sign of life for {SILENCE_SECONDS:g} s", silent=True)
                peer.close()

    def _greet(self, peer: Peer, hello: Hello) -> None:
        role = self._roles.get((hello.role, hello.rank))
        if role is None:
            raise BadFrameError(f"{hello.role} {hello.rank} is no role of this run")
        before = role.peer
        role.begin(hello, peer)
        role.node = self._name_node(hello.node)
        peer.tag = role
        if before is not None:
            before.close()
        ours = (VERSION, platform.python_version())
        theirs = (hello.paceline, hello.python)
        if ours != theirs:
            self.events.put(Event("failed", role, _other_versions(role, ours, theirs)))

    def _keep_records(self, role: Role, report: Report) -> None:
        later = time.perf_counter() - report.now
        prober = self._probing.setdefault(role.node, role)
        if prober.peer is None:
            prober = self._probing[role.node] = role
        for record in report.records:
            if isinstance(record, NodeProbe | LeftOut) and prober is not role:
                continue
            record.time += later
            if isinstance(record, NodeProbe | LeftOut | WorkerChunk | ShardChunk):
                record.node = role.node
            self._records.append(record)

    def _lose(self, role: Role, because: str, silent: bool) -> None:
        role.peer, role.doing = None, ""
        self.events.put(Event("lost", role, Loss(time.monotonic() - role.silent_seconds, because, silent)))


def _other_versions(role: Role, ours: tuple[str, str], theirs: tuple[str, str]) -> Failed:
    return Failed(
        kind="config",
        message="paceline {} with Python {} is here, but paceline {} with Python {} there".format(*ours, *theirs),
        hint=f"install the same versions on node {role.node}",
    )
