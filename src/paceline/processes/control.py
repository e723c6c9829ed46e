"""Where do supervised processes report, and how does the coordinator notice that one was lost?

The control server runs on its own thread of the coordinator. Each process stays connected to it and sends a
heartbeat once per second. A role whose connection breaks, or that is silent for `SILENCE_SECONDS`, is lost. What the
coordinator must act on comes out as events.
"""

from __future__ import annotations

import functools
import operator
import platform
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from paceline.processes.backlog import Backlog
from paceline.processes.messages import Beat, Failed, Hello, Message, Ready, Report, decode, encode
from paceline.processes.roles import Loss, Role
from paceline.telemetry.records import AnyRecord, LeftOut, NodeProbe, ShardChunk, WorkerChunk
from paceline.version import VERSION
from paceline.wire.frames import HEADER, BadFrameError, Frame, Kind
from paceline.wire.server import Peer, Server

SILENCE_SECONDS = 5.0
TICK_SECONDS = 0.5
# Time in which this process itself did not run (a laptop asleep, a debugger) is not silence of others.
MOST_SECONDS_PER_TICK = 1.0
# What roles may say before the coordinator has acted on it, or written it: more than any sound run needs. Counted in
# bytes on the wire; in memory, small numbers take up to 32 times as much.
MOST_EVENT_BYTES = 64 << 20
MOST_RECORD_BYTES = 16 << 20
MOST_MESSAGE_BYTES = 4 << 20

# Called on the control server's thread with a message; what it returns, if anything, is the reply.
Answer = Callable[[Role, Any], Message | None]


class Event(NamedTuple):
    """Something to act on: a role's `Ready`, `Failed` or `Loss`, or a message of the user's own kinds."""

    role: Role
    what: Message | Loss


class ControlServer:
    """The coordinator's side of all lifelines."""

    def __init__(self, server: Server, roles: Sequence[Role], name_node: Callable[[str], str],
                 kinds: Sequence[type[Message]] = (),
                 answers: dict[type[Message], Answer] | None = None,
                 most_message_bytes: int = MOST_MESSAGE_BYTES) -> None:  # fmt: skip
        """`kinds` are the user's own messages that come out as events; those in `answers` are answered at once."""
        self.server = server
        server.caps = dict.fromkeys(Kind, 0) | {Kind.MESSAGE: most_message_bytes}
        self.roles = list(roles)
        self.events: Backlog[Event] = Backlog()
        self.message_bytes = 0
        """Bytes on the wire of what roles were told, and of messages of the user's own kinds."""
        self._answers = answers or {}
        self._kinds: Any = functools.reduce(operator.or_, [Hello, Ready, Beat, Report, Failed, *kinds, *self._answers])
        self._name_node = name_node
        self._last_tick = time.monotonic()
        self._records: Backlog[list[AnyRecord]] = Backlog()
        # The role whose probes are kept, by node: one is enough.
        self._probing: dict[str, Role] = {}
        self._thread = threading.Thread(target=self._serve, name="paceline-control", daemon=True)
        self._thread.start()

    def say(self, role: Role, message: Message) -> None:
        """Send a message to a role, if it is there. From any thread."""
        content = encode(message)
        self.server.call_soon(lambda: self._send(role.peer, content))

    def take_records(self) -> list[AnyRecord]:
        """What roles have reported since the last call, in the coordinator's time (`time.perf_counter`)."""
        found: list[AnyRecord] = []
        with suppress(queue.Empty):
            for _ in range(len(self._records)):
                found += self._records.get()
        return found

    def close(self) -> None:
        """Hang up on all roles; their processes then end."""
        self.server.stop()
        self._thread.join()
        self.server.close()

    def _serve(self) -> None:
        try:
            self.server.serve(self, TICK_SECONDS)
        except Exception as error:  # noqa: BLE001 (any error: nobody may wait for a closed server)
            failed = Failed(kind="run", message=f"the coordinator's control server failed: {error}", hint="")
            self.events.put(Event(self.roles[0], failed))

    def _send(self, peer: Peer | None, content: bytes) -> None:
        if peer is not None:
            self.message_bytes += HEADER.size + len(content)
            peer.send(Kind.MESSAGE, 0, content)

    # -- what the server calls

    def received(self, peer: Peer, frame: Frame) -> None:
        message = decode(frame, self._kinds)
        if isinstance(message, Hello):
            self._greet(peer, message, len(frame.body))
            return
        role = peer.tag
        if not isinstance(role, Role) or role.peer is not peer:
            raise BadFrameError(f"a message from {peer.address}, which does not have a role now")
        role.silent_seconds = 0.0
        match message:
            case Beat():
                role.beat(message)
            case Report():
                self._keep_records(role, message, len(frame.body))
            case Ready() | Failed():
                role.address = message.address if isinstance(message, Ready) else role.address
                self._let_act(role, message, len(frame.body))
            case _:
                self.message_bytes += HEADER.size + len(frame.body)
                if answer := self._answers.get(type(message)):
                    if reply := answer(role, message):
                        self._send(peer, encode(reply))
                else:
                    self._let_act(role, message, len(frame.body))

    def _let_act(self, role: Role, message: Message, num_bytes: int) -> None:
        self._check_room(role)
        self.events.put(Event(role, message), num_bytes)

    def _check_room(self, role: Role) -> None:
        if self.events.num_bytes >= MOST_EVENT_BYTES:
            raise BadFrameError(f"{role.name} says more than the coordinator can act on")

    def closed(self, peer: Peer) -> None:
        role = peer.tag
        if isinstance(role, Role) and role.peer is peer:
            self._lose(role, "its process ended", silent=False)

    def tick(self) -> None:
        now = time.monotonic()
        passed, self._last_tick = min(now - self._last_tick, MOST_SECONDS_PER_TICK), now
        for role in self.roles:
            if role.peer is None:
                continue
            role.silent_seconds += passed
            if role.silent_seconds > SILENCE_SECONDS:
                peer = role.peer
                self._lose(role, f"it sent no heartbeat for {SILENCE_SECONDS:g} s", silent=True)
                peer.close()

    def _greet(self, peer: Peer, hello: Hello, num_bytes: int) -> None:
        role = next((one for one in self.roles if (one.role, one.rank) == (hello.role, hello.rank)), None)
        if role is None:
            raise BadFrameError(f"this run has no {hello.role} {hello.rank}")
        if peer.tag is not None:
            raise BadFrameError(f"{peer.address} is {peer.tag.name} already")
        # A role that cannot begin cannot be lost either, so losses need no room of their own.
        self._check_room(role)
        if self._probing.get(role.node) is role:
            del self._probing[role.node]
        before = role.peer
        role.begin(hello, self._name_node(hello.node), peer)
        peer.tag = role
        if before is not None:
            before.close()
        ours, theirs = (VERSION, platform.python_version()), (hello.paceline, hello.python)
        if ours != theirs:
            message = "the coordinator runs paceline {} with Python {}, but the node has paceline {} with Python {}"
            hint = f"install the same versions on node {role.node}"
            self._let_act(role, Failed(kind="config", message=message.format(*ours, *theirs), hint=hint), num_bytes)

    def _keep_records(self, role: Role, report: Report, num_bytes: int) -> None:
        later = time.perf_counter() - report.now
        prober = self._probing.setdefault(role.node, role)
        if prober.peer is None:
            prober = self._probing[role.node] = role
        about_node = NodeProbe | LeftOut
        kept = [record for record in report.records if prober is role or not isinstance(record, about_node)]
        for record in kept:
            record.time += later
            if isinstance(record, about_node | WorkerChunk | ShardChunk):
                record.node = role.node
        if kept:
            self._records.put(kept, num_bytes)
        # The oldest are worth least.
        with suppress(queue.Empty):
            while self._records.num_bytes > MOST_RECORD_BYTES:
                self._records.get()

    def _lose(self, role: Role, because: str, silent: bool) -> None:
        role.peer, role.doing = None, ""
        self.events.put(Event(role, Loss(time.monotonic() - role.silent_seconds, because, silent)))
