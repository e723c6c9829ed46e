"""What goes over a connection?

Frames, one after the other: a header of 16 bytes (magic, version, kind, flags, length of the body, little-endian),
then the body. A body's meaning is its kind's; here it is bytes.
"""

from __future__ import annotations

import enum
import struct
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from paceline.errors import RunError

MAGIC = b"pl"
VERSION = 1
HEADER = struct.Struct("<2sBBIQ")

Buffer: TypeAlias = bytes | bytearray | memoryview | NDArray[Any]

_SAME_VERSION = "run the same version of paceline everywhere, and let nothing else use its ports"


class WireError(RunError):
    """Two processes of a run could not talk. The message names the other one's address."""


class BadFrameError(WireError):
    """Bytes that are not a frame, or a frame that may not be sent."""


class LostConnectionError(WireError):
    """The connection is gone, or could not be made: closed by the other side, cut in a frame, reset."""


class ResetError(LostConnectionError):
    """The other side broke the connection off. In a handshake: it has too many, and another attempt may succeed."""


class SilentPeerError(WireError):
    """The other side sent, or took, no byte for too long."""


class RefusedError(WireError):
    """The other side does not know the run's token, or is not paceline."""


class Kind(enum.IntEnum):
    """What a frame's body is."""

    MESSAGE = 1
    """A control message."""
    STEP = 2
    """A worker's step, to a shard."""
    VALUES = 3
    """A shard's values, to a worker."""
    HELD = 4
    """From a shard to a worker: your reply is held back."""
    CHUNK = 5
    """A piece of a state, in bulk."""


CAPS: dict[Kind, int] = {
    Kind.MESSAGE: 64 << 20,
    Kind.STEP: 4 << 30,
    Kind.VALUES: 4 << 30,
    Kind.HELD: 64 << 10,
    Kind.CHUNK: 64 << 20,
}
"""The greatest length of a body, in bytes."""

_KINDS = {int(kind): kind for kind in Kind}


class Frame(NamedTuple):
    """A frame as it was received.

    `body` is a writable view of the connection's buffer, its start aligned to 16 bytes. It is valid until the next
    frame of that connection is asked for; copy it to keep it longer.
    """

    kind: Kind
    flags: int
    body: NDArray[np.uint8]


def read_header(data: bytes | bytearray | memoryview, peer: str = "the other side",
                caps: dict[Kind, int] = CAPS) -> tuple[Kind, int, int]:  # fmt: skip
    """Kind, flags and body length from the 16 bytes that begin a frame; raise `BadFrameError` if they do not.

    >>> read_header(HEADER.pack(MAGIC, VERSION, Kind.HELD, 7, 24))
    (<Kind.HELD: 4>, 7, 24)
    """
    if len(data) < HEADER.size:
        raise BadFrameError(f"{peer} sent {len(data)} bytes where a frame's header has {HEADER.size}", _SAME_VERSION)
    magic, version, number, flags, length = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise BadFrameError(f"{peer} sent {magic!r} where a frame begins with {MAGIC!r}", _SAME_VERSION)
    if version != VERSION:
        raise BadFrameError(f"{peer} sent a frame of version {version}, expected {VERSION}", _SAME_VERSION)
    kind = _KINDS.get(number)
    if kind is None:
        raise BadFrameError(f"{peer} sent a frame of the unknown kind {number}", _SAME_VERSION)
    if length > caps[kind]:
        raise BadFrameError(
            f"{peer} announced {length:,} bytes of {kind.name}; the limit is {caps[kind]:,}", _SAME_VERSION
        )
    return kind, flags, length


def frame_buffers(kind: Kind, flags: int, parts: tuple[Buffer, ...], peer: str) -> tuple[list[Buffer], int]:
    """A frame for `peer`: its header and then `parts`, which are not copied, and how many bytes they are together."""
    length = 0
    for part in parts:
        length += len(part) if isinstance(part, bytes | bytearray) else part.nbytes
    if length > CAPS[kind]:
        raise BadFrameError(
            f"{length:,} bytes of {kind.name} do not fit into one frame to {peer}; the limit is {CAPS[kind]:,}",
            "spread the parameters over more shards",
        )
    return [HEADER.pack(MAGIC, VERSION, kind, flags, length), *parts], HEADER.size + length


def views_of(buffers: list[Buffer], skipped: int = 0) -> list[memoryview]:
    """What lies in `buffers` after the first `skipped` bytes, as views of bytes, none of them empty."""
    views = []
    for buffer in buffers:
        view = memoryview(buffer)  # type: ignore[arg-type]  # arrays are buffers
        if skipped >= view.nbytes:
            skipped -= view.nbytes
        else:
            views.append(view.cast("B")[skipped:])
            skipped = 0
    return views
