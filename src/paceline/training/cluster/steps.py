"""How does one step look on the wire?

A worker sends the gradient of its last batch and the keys of its next in one STEP frame, and gets the values of those
keys back in one VALUES frame. A push carries no keys: the shard remembers those of the last pull. Behind the values of
the keys, [keys, dim], come the dense values that the shard holds, if the model has any, and gradients go the same way.
A shard that holds a reply back says so, and which workers it waits for, in HELD frames.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.wire.coding import VALUE_BYTES, Bytes, Floats, KeyWriter, read_values, write_values
from paceline.wire.frames import BadFrameError, Frame, Kind

# What a STEP frame does, in its flags: any of them together, LEAVE and PULL apart.
PUSH, PULL, LEAVE = 1, 2, 4

# Before the numbers of a CHUNK frame: the index of the first parameter that they are of.
_CHUNK_HEAD = struct.Struct("<Q")
_STEP = struct.Struct("<qqdIIII")
_VALUES = struct.Struct("<qQQQ")
_PADDING = bytes(8)
EMPTY = np.empty(0, np.float32)


class Ask(NamedTuple):
    """What goes into a STEP frame: the push of an earlier batch, and the indices that `batch` pulls."""

    flags: int
    batch: int
    trained: int
    losses: float
    rows: int
    pushed: Floats = EMPTY
    indices: NDArray[Any] = EMPTY


class StepFrame(NamedTuple):
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
    """How long a shard had a step, in nanoseconds: in its queue, waiting at the gate, and working on it."""

    queue: int
    held: int
    service: int


class ValuesFrame(NamedTuple):
    """A VALUES frame: what batch `batch` asked for, as bytes."""

    batch: int
    times: Times
    data: Bytes


def step_parts(ask: Ask, values: str, writer: KeyWriter) -> tuple[Any, ...]:
    """The body of a STEP frame, in parts; pushed values are coded as `values`, and keys by the writer."""
    coding, keys = writer.write(ask.indices)
    pushed = write_values(ask.pushed, values)
    head = _STEP.pack(ask.batch, ask.trained, ask.losses, ask.rows, len(ask.pushed), len(ask.indices), coding)
    return head, pushed, _PADDING[: -pushed.nbytes % 8], keys


def read_step(frame: Frame, values: str) -> StepFrame:
    """A STEP frame whose pushed values are coded as `values`; arrays may be views of the frame."""
    body = frame.body
    if len(body) < _STEP.size:
        raise BadFrameError(f"a step of {len(body)} bytes")
    batch, trained, losses, rows, num_pushed, num_keys, coding = _STEP.unpack_from(body.data)
    pushed_bytes = num_pushed * VALUE_BYTES[values]
    keys_from = _STEP.size + pushed_bytes + -pushed_bytes % 8
    if keys_from > len(body):
        raise BadFrameError(f"a step of {len(body)} bytes that pushes {num_pushed} values")
    if num_keys > len(body) - keys_from:
        raise BadFrameError(f"a step of {len(body)} bytes that pulls {num_keys} keys")
    pushed = read_values(body[_STEP.size : _STEP.size + pushed_bytes], num_pushed, values)
    return StepFrame(frame.flags, batch, trained, losses, rows, pushed, num_keys, coding, body[keys_from:])


def values_head(batch: int, times: Times) -> bytes:
    """What stands before the values of a VALUES frame."""
    return _VALUES.pack(batch, *times)


def read_reply(frame: Frame) -> ValuesFrame:
    """A VALUES frame; its data is a view of the frame."""
    if len(frame.body) < _VALUES.size:
        raise BadFrameError(f"a reply of {len(frame.body)} bytes")
    batch, *times = _VALUES.unpack_from(frame.body.data)
    return ValuesFrame(batch, Times(*times), frame.body[_VALUES.size :])


def chunk_parts(start: int, numbers: Floats) -> tuple[Any, ...]:
    """The body of a CHUNK frame: numbers of parameters from index `start` on."""
    return _CHUNK_HEAD.pack(start), numbers


def read_chunk(frame: Frame) -> tuple[int, Floats]:
    """The index of the first parameter, and the numbers of a CHUNK frame: a view of it."""
    size = len(frame.body) - _CHUNK_HEAD.size
    if frame.kind != Kind.CHUNK or size < 0 or size % 4:
        raise BadFrameError(f"a {frame.kind.name} frame of {len(frame.body)} bytes where numbers were expected")
    return _CHUNK_HEAD.unpack_from(frame.body.data)[0], frame.body[_CHUNK_HEAD.size :].view(np.float32)


def read_numbers(frame: Frame, count: int) -> Floats:
    """The numbers of a CHUNK frame that must have this many: a view of it."""
    _, numbers = read_chunk(frame)
    if len(numbers) != count:
        raise BadFrameError(f"{len(numbers)} numbers came instead of {count}")
    return numbers


def held_part(ranks: list[int]) -> NDArray[np.int32]:
    """The body of a HELD frame: the reply waits for these workers."""
    return np.array(ranks, np.int32)


def read_held(frame: Frame) -> list[int]:
    """For which workers a reply waits."""
    if len(frame.body) % 4:
        raise BadFrameError(f"a notice of {len(frame.body)} bytes")
    ranks: list[int] = frame.body.view(np.int32).tolist()
    return ranks
