"""What does every supervised process say to its coordinator?

All messages are small typed structures in MessagePack; a message that does not decode as one of those expected closes
the connection. Training and matrices add their own messages.
"""

from __future__ import annotations

from typing import Any

import msgspec

from paceline.telemetry.records import AnyRecord
from paceline.wire.frames import BadFrameError, Frame, Kind
from paceline.wire.tls import Tls


class Message(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag=True):
    """One message."""


class Hello(Message):
    """A process begins: its role, its place, and its versions."""

    role: str
    rank: int
    pid: int
    node: str
    paceline: str
    python: str


class Ready(Message):
    """A role can begin: its `address` if it serves others, and the fingerprint of the `data` it sees, if any."""

    address: str = ""
    data: str = ""


class Beat(Message):
    """A role is alive. `doing` names what it does or waits for; bytes are those on connections to other roles."""

    doing: str
    bytes_sent: int
    bytes_received: int
    memory_bytes: int


class Report(Message):
    """What a role has recorded of itself and its node; times are of its own clock, which shows `now`."""

    now: float
    records: list[AnyRecord]


class Failed(Message):
    """A role gives up. `kind` is one of `data`, `config`, `diverged`, `run`."""

    kind: str
    message: str
    hint: str


class ProcessSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What every process is given: its role, and how to reach the coordinator. Training and matrices add fields."""

    role: str
    rank: int
    coordinator: str
    token: bytes
    tls: Tls | None = None
    loopback: bool

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.role} {self.rank})"  # neither the token nor the key


def encode(message: msgspec.Struct) -> bytes:
    """The bytes of a message."""
    return msgspec.msgpack.encode(message)


def decode(frame: Frame, kinds: Any) -> Any:
    """The message in a frame, which must be one of `kinds`, a union of messages."""
    if frame.kind != Kind.MESSAGE:
        raise BadFrameError(f"a {frame.kind.name} frame where a message was expected")
    try:
        return msgspec.msgpack.decode(frame.body.data, type=kinds)
    except msgspec.DecodeError as error:
        raise BadFrameError(f"a message cannot be decoded: {error}") from None
