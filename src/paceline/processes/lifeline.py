"""What does every supervised process do from its start to its end?

It connects to the coordinator: that connection is its *lifeline*. One thread says every second that the process is
alive and what it does, however long a step takes; another receives the coordinator's orders. When the connection
breaks, the process ends.
"""

from __future__ import annotations

import os
import platform
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import psutil

from paceline.processes.messages import Beat, Failed, Hello, Message, ProcessSpec, Report, decode, encode
from paceline.telemetry.meter import period_at
from paceline.telemetry.records import AnyRecord
from paceline.version import VERSION
from paceline.wire.connection import Connection, connect
from paceline.wire.frames import Kind, SilentPeerError, WireError

BEAT_SECONDS = 1.0
LOOPBACK = "127.0.0.1"
Spec = TypeVar("Spec", bound=ProcessSpec)


class Lifeline:
    """A process's connection to the coordinator. Its user sets `status` and `records`, and reads `orders`."""

    def __init__(self, connection: Connection, hello: Hello, kinds: Any, memory: Callable[[], int]) -> None:
        """`kinds` is the union of the messages that the coordinator may send; `memory` counts this process's bytes."""
        self.orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        """What the coordinator says, except for the kinds that `on` sends elsewhere."""
        self.status: Callable[[], tuple[str, int, int]] = lambda: ("starts", 0, 0)
        """What the process does, and the bytes sent to and received from other roles."""
        self.records: Callable[[], list[AnyRecord]] = list
        self.refused: Callable[[], int] = int
        """How many connections this process has refused, if it serves others."""
        self.num_roles = 1
        self._connection = connection
        self._kinds = kinds
        self._memory = memory
        self._handlers: dict[type[Message], Callable[[Any], None]] = {}
        self._reporting = threading.Lock()
        self._began = time.monotonic()
        self._next_report = 0.0
        self.say(hello)
        for work in (self._beat, self._listen):
            threading.Thread(target=work, name=f"paceline-lifeline{work.__name__}", daemon=True).start()

    def say(self, message: Message) -> None:
        """Tell the coordinator."""
        self._connection.send(Kind.MESSAGE, 0, encode(message))

    def on(self, kind: type[Message], handle: Callable[[Any], None]) -> None:
        """Give messages of this kind to `handle`, on the listening thread, instead of to `orders`."""
        self._handlers[kind] = handle

    def beat(self) -> None:
        """Tell the coordinator that this process is alive, and what it does."""
        doing, sent, received = self.status()
        memory, refused = self._memory(), self.refused()
        self.say(Beat(doing=doing, bytes_sent=sent, bytes_received=received, memory_bytes=memory, refused=refused))

    def report(self) -> None:
        """Tell the coordinator what was recorded since the last report."""
        with self._reporting:
            records = self.records()
            if records:
                self.say(Report(now=time.perf_counter(), records=records))

    def _beat(self) -> None:
        while True:
            try:
                self.beat()
                now = time.monotonic()
                if now >= self._next_report:
                    # A beat may come slightly early, and must not miss its turn because of that.
                    self._next_report = now + period_at(now - self._began, self.num_roles) - BEAT_SECONDS / 2
                    self.report()
            except WireError:
                os._exit(0)  # the coordinator is gone: nothing here is worth keeping
            time.sleep(BEAT_SECONDS)

    def _listen(self) -> None:
        last: Message | None = None
        while True:
            try:
                order: Message = decode(self._connection.receive(silence_seconds=3600), self._kinds)
            except SilentPeerError:
                continue
            except WireError:
                os._exit(0)  # the coordinator is gone: nothing here is worth keeping
            if handle := self._handlers.get(type(order)):
                handle(order)
            elif order != last:
                # The coordinator may repeat an order, to be sure that a new process has heard it.
                self.orders.put(order)
                last = order


def resident_memory() -> int:
    """Bytes of this process in memory."""
    return int(psutil.Process().memory_info().rss)


def run_supervised(content: bytes, node: str, host: str, spec_type: type[Spec], kinds: Any,
                   work: Callable[[Spec, Lifeline, str], None],
                   memory: Callable[[], int] = resident_memory) -> None:  # fmt: skip
    """Call `work` with the spec that `content` is, a lifeline, and the address to serve at; report how it fails.

    `node` and `host` are the name and address of this node; `kinds` are the messages that the coordinator may send.
    """
    spec = msgspec.msgpack.decode(content, type=spec_type)
    python = platform.python_version()
    hello = Hello(role=spec.role, rank=spec.rank, pid=os.getpid(), node=node, paceline=VERSION, python=python)
    lifeline = Lifeline(connect(spec.coordinator, spec.token, spec.tls, mac=spec.mac), hello, kinds, memory)
    try:
        work(spec, lifeline, LOOPBACK if spec.loopback else host)
    except Exception as error:  # noqa: BLE001 (any error: the user reads it where the command was started)
        lifeline.say(Failed.of(error))
