"""An engine without processes, and processes that are connections of the test."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import msgspec

from paceline.processes.control import ControlServer
from paceline.processes.messages import Hello, Message, ProcessSpec, encode
from paceline.processes.roles import Role
from paceline.version import VERSION
from paceline.wire.connection import Connection, connect
from paceline.wire.frames import Kind
from paceline.wire.server import Server

TOKEN = b"t" * 32


class Ping(Message):
    """To be answered at once."""

    number: int


class Pong(Message):
    """The answer."""

    number: int


class News(Message):
    """To be acted on."""

    text: str


class FakeEngine:
    """Notes what it is asked; `failures` and `reasons` are what it says about processes, by number."""

    host, loopback, num_processes = "127.0.0.1", True, 3

    def __init__(self, restarts: Literal["one", "all"] = "one") -> None:
        self.restarts = restarts
        self.begun: list[tuple[int, ProcessSpec]] = []
        self.ended: list[tuple[int, int]] = []
        self.failures: dict[int, str] = {}
        self.reasons: dict[int, str] = {}
        self.loss = ""
        self.closed = False

    def begin(self, number: int, content: bytes) -> None:
        self.begun.append((number, msgspec.msgpack.decode(content, type=ProcessSpec)))

    def end(self, number: int, pid: int) -> None:
        self.ended.append((number, pid))

    def failure_of(self, number: int) -> str:
        return self.failures.get(number, "")

    def lost(self) -> str:
        return self.loss

    def why_not_running(self, number: int) -> str:
        return self.reasons.get(number, "")

    def name_of(self, node: str) -> str:
        return f"node-{node}"

    def own_place(self) -> dict[str, Any]:
        return {"node": "node-here", "address": "", "pid": os.getpid()}

    def close(self) -> None:
        self.closed = True


@contextmanager
def control_server(*roles: Role, **options: Any) -> Iterator[ControlServer]:
    control = ControlServer(Server("127.0.0.1", 0, TOKEN, None), roles, lambda node: f"node-{node}", **options)
    try:
        yield control
    finally:
        control.close()


def hello_of(role: Role, **changes: Any) -> Hello:
    hello = Hello(role=role.role, rank=role.rank, pid=7, node="a", paceline=VERSION, python=platform.python_version())
    return msgspec.structs.replace(hello, **changes)


def joined(control: ControlServer, role: Role, *messages: Message, **changes: Any) -> Connection:
    """A process that says hello as this role, and then these messages."""
    connection = connect(control.server.address, TOKEN, None)
    for message in (hello_of(role, **changes), *messages):
        say(connection, message)
    return connection


def say(connection: Connection, message: Message) -> None:
    connection.send(Kind.MESSAGE, 0, encode(message))
