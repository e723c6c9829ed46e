"""How does one step look on the wire?

A worker sends the gradient of its last batch and the keys of its next in one STEP frame, and gets the weights of those
keys back in one VALUES frame. A push carries no keys: the shard remembers those of the last pull. A shard that holds
a reply back says so, and for whom it waits, in HELD frames.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.wire.coding import CACHED, MOST_CACHED_KEYS, VALUE_BYTES, Bytes, Floats, read_values
from paceline.wire.frames import BadFrameError, Frame

# What a STEP frame does, in its flags: any of them together, LEAVE and PULL apart.
PUSH, PULL, LEAVE = 1, 2, 4

_STEP = struct.Struct("<qqdIIII")
_VALUES = struct.Struct("<qQQQ")
_HELD = struct.Struct("<q")
_PADDING = bytes(8)


class Step(NamedTuple):
    """A STEP frame: asks for batch `batch` and pushes the batch before it, of `rows` rows whose losses add up to
    `losses`; `trained` rows were handed out before that one.
    """

    flags: int
    batch: int
    trained: int
    losses: float
    rows: int
    pushed: Floats
    num_keys: int
    coding: int
    keys: Bytes


class Times(NamedTuple):
    """How long a shard had a step, in nanoseconds: before it looked at it, waiting at the gate, and working on it."""

    queue: int
    held: int
    service: int


class Values(NamedTuple):
    """A VALUES frame: the weights that batch `batch` asked for, as bytes."""

    batch: int
    times: Times
    data: Bytes


def step_parts(batch: int, trained: int, losses: float, rows: int, pushed: NDArray[Any], num_pushed: int,
               num_keys: int, coding: int, keys: NDArray[Any]) -> tuple[Any, ...]:  # fmt: skip
    """The body of a STEP frame, in parts; `pushed` and `keys` are coded already."""
    head = _STEP.pack(batch, trained, losses, rows, num_pushed, num_keys, coding)
    return head, pushed, _PADDING[: -pushed.nbytes % 8], keys


def read_step(frame: Frame, values: str) -> Step:
    """A STEP frame whose pushed values are coded as `values`; arrays may be views of the frame."""
    body = frame.body
    if len(body) < _STEP.size:
        raise BadFrameError(f"a step of {len(body)} bytes")
    batch, trained, losses, rows, num_pushed, num_keys, coding = _STEP.unpack_from(body.data)
    pushed_bytes = num_pushed * VALUE_BYTES[values]
    keys_from = _STEP.size + pushed_bytes + -pushed_bytes % 8
    if keys_from > len(body):
        raise BadFrameError(f"a step of {len(body)} bytes that pushes {num_pushed} values")
    if num_keys > (MOST_CACHED_KEYS if coding == CACHED else len(body) - keys_from):
        raise BadFrameError(f"a step of {len(body)} bytes that pulls {num_keys} keys")
    pushed = read_values(body[_STEP.size : _STEP.size + pushed_bytes], num_pushed, values)
    return Step(frame.flags, batch, trained, losses, rows, pushed, num_keys, coding, body[keys_from:])


def values_head(batch: int, times: Times) -> bytes:
    """What stands before the values of a VALUES frame."""
    return _VALUES.pack(batch, *times)


def read_reply(frame: Frame) -> Values:
    """A VALUES frame; its data is a view of the frame."""
    if len(frame.body) < _VALUES.size:
        raise BadFrameError(f"a reply of {len(frame.body)} bytes")
    batch, *times = _VALUES.unpack_from(frame.body.data)
    return Values(batch, Times(*times), frame.body[_VALUES.size :])


def held_parts(batch: int, ranks: list[int]) -> tuple[Any, ...]:
    """The body of a HELD frame: the reply to `batch` waits for these workers."""
    return _HELD.pack(batch), np.array(ranks, np.int32)


def read_held(frame: Frame) -> list[int]:
    """For which workers a reply waits."""
    if len(frame.body) < _HELD.size or (len(frame.body) - _HELD.size) % 4:
        raise BadFrameError(f"a notice of {len(frame.body)} bytes")
    ranks: list[int] = frame.body[_HELD.size :].view(np.int32).tolist()
    return ranks
