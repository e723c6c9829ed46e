"""How do compiled loops send and receive? They call the system's functions by name, on sockets that Python has opened.

Nothing here knows why a call failed: a loop leaves that connection to Python, which tries again and finds out.
"""

from __future__ import annotations

import select
import socket
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from paceline.kernels.jit import address_of, inlined

Bytes = NDArray[np.uint8]

READABLE, WRITABLE = select.POLLIN, select.POLLOUT
# No signal when the other side has closed.
_SEND_FLAGS = getattr(socket, "MSG_NOSIGNAL", 0)
_FOUND_BITS = 16

_poll: Any = types.ExternalFunction("poll", types.int32(types.uintp, types.uintp, types.int32))
_recv: Any = types.ExternalFunction("recv", types.intp(types.int32, types.uintp, types.uintp, types.int32))
_send: Any = types.ExternalFunction("send", types.intp(types.int32, types.uintp, types.uintp, types.int32))
_memmove: Any = types.ExternalFunction("memmove", types.uintp(types.uintp, types.uintp, types.uintp))


@intrinsic
def _address(_context: Any, array: Any, index: Any) -> Any:
    """Where `array[index]` lies."""
    signature = types.uintp(array, index)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ptrtoint(address_of(context, builder, signature, args), ir.IntType(64))

    return signature, codegen


def make_polled(count: int) -> NDArray[np.int32]:
    """What `poll` watches: a descriptor, or -1 for none, and the events that are waited for, [count, 2]."""
    polled = np.zeros((count, 2), np.int32)
    polled[:, 0] = -1
    return polled


@inlined
def poll(polled: NDArray[np.int32], milliseconds: int) -> int:
    """Wait for an event; how many descriptors have one, 0 when the time is over, negative if interrupted."""
    return _poll(_address(polled, 0), np.uintp(polled.shape[0]), np.int32(milliseconds))


@inlined
def wait_for(polled: NDArray[np.int32], at: int, events: int) -> None:
    """Let `poll` wait for these events of a descriptor; those that it has found stay."""
    polled[at, 1] = (polled[at, 1] >> _FOUND_BITS << _FOUND_BITS) | events


@inlined
def found(polled: NDArray[np.int32], at: int) -> int:
    """The events that `poll` has found: `READABLE`, `WRITABLE`, others for errors."""
    return (polled[at, 1] >> _FOUND_BITS) & 0xFFFF


@inlined
def receive(descriptor: int, buffer: Bytes, start: int, stop: int) -> int:
    """Receive into `buffer` from `start` up to `stop`; how many bytes came, 0 at the end, negative if none can."""
    return _recv(np.int32(descriptor), _address(buffer, start), np.uintp(stop - start), np.int32(0))


@inlined
def send(descriptor: int, buffer: Bytes, start: int, stop: int) -> int:
    """Send what `buffer` has from `start` up to `stop`; how many bytes went, negative if none can."""
    return _send(np.int32(descriptor), _address(buffer, start), np.uintp(stop - start), np.int32(_SEND_FLAGS))


@inlined
def move_to_front(buffer: Bytes, start: int, stop: int) -> None:
    """Move the bytes from `start` up to `stop` to the front."""
    _memmove(_address(buffer, 0), _address(buffer, start), np.uintp(stop - start))
