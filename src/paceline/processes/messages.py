"""What does every supervised process say to its coordinator?

All messages are small typed structures in MessagePack; a message that does not decode as one of those expected closes
the connection. Training and matrices add their own messages.
"""

from __future__ import annotations

import os
import traceback
from typing import Any

import msgspec

from paceline.errors import BAD_TEXT, OUT_OF_MEMORY, ConfigError, DataError, DivergedError, PacelineError, RunError
from paceline.telemetry.records import AnyRecord
from paceline.wire.frames import BadFrameError, Frame, Kind
from paceline.wire.tls import Tls

FAILURES: dict[str, type[PacelineError]] = {"data": DataError, "config": ConfigError, "diverged": DivergedError}


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
    """A role is alive. `doing` names what it does or waits for; bytes are those on connections to other roles, and
    `refused` counts the connections that its own port refused.
    """

    doing: str
    bytes_sent: int
    bytes_received: int
    memory_bytes: int
    refused: int = 0


class Report(Message):
    """What a role has recorded of itself and its node; times are of its own clock, which shows `now`."""

    now: float
    records: list[AnyRecord]


class Failed(Message):
    """A role gives up. `kind` is one of `data`, `config`, `diverged`, `run`. The user reads it where the command was
    started.
    """

    kind: str
    message: str
    hint: str

    @classmethod
    def of(cls, error: Exception) -> Failed:
        """What a process tells the coordinator about an error."""
        if isinstance(error, PacelineError):
            kind = next((kind for kind, type_ in FAILURES.items() if isinstance(error, type_)), "run")
            return cls(kind=kind, message=_as_text(error.message), hint=_as_text(error.hint))
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({os.path.basename(where.filename)}, line {where.lineno})"
        hint = OUT_OF_MEMORY if isinstance(error, MemoryError) else ""
        return cls(kind="run", message=_as_text(text), hint=hint)

    def as_error(self, name: str, started: bool) -> PacelineError:
        """What the role `name` reported, as an error. Wrong input counts as such only until the run has started."""
        kind = FAILURES.get(self.kind, RunError)
        if kind is DivergedError:
            return kind(self.message, self.hint)
        return (RunError if started else kind)(f"{name}: {self.message}", self.hint)


class ProcessSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What every process is given: its role, and how to reach the coordinator. Training and matrices add fields."""

    role: str
    rank: int
    coordinator: str
    token: bytes
    tls: Tls | None = None
    mac: bool = False
    loopback: bool

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.role} {self.rank})"  # neither the token nor the key


def _as_text(words: str) -> str:
    """Words that can be encoded: names of files may contain bytes that are not UTF-8."""
    return words.encode(errors="backslashreplace").decode()


def encode(message: msgspec.Struct) -> bytes:
    """The bytes of a message."""
    return msgspec.msgpack.encode(message)


def decode(frame: Frame, kinds: Any) -> Any:
    """The message in a frame, which must be one of `kinds`, a union of messages."""
    if frame.kind != Kind.MESSAGE:
        raise BadFrameError(f"a {frame.kind.name} frame where a message was expected")
    try:
        return msgspec.msgpack.decode(frame.body.data, type=kinds)
    except BAD_TEXT as error:
        raise BadFrameError(f"a message cannot be decoded: {error}") from None
