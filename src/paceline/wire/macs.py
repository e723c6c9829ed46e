"""How is a frame that was altered, left out, repeated or moved on its way found out?

By a message authentication code (MAC) behind its body: HMAC-SHA256, cut to 16 bytes, of its number in this direction,
its header and its body. Each direction of each connection has its own key, which takes the run's token to compute.
"""

from __future__ import annotations

import hmac
from typing import NamedTuple

from paceline.wire.frames import BadFrameError, Buffer, views_of

MAC_BYTES = 16


class AlteredFrameError(BadFrameError):
    """A frame is not the one that the other side sent next."""


class Mac:
    """Computes the MACs of the frames of one direction, one after the other; both sides have one."""

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, digestmod="sha256")
        self._count = 0

    def next(self, buffers: list[Buffer]) -> bytes:
        """The MAC of the next frame: its header and its body, in any number of parts."""
        mac = self._keyed.copy()
        mac.update(self._count.to_bytes(8, "little"))
        for view in views_of(buffers):
            mac.update(view)
        self._count += 1
        return mac.digest()[:MAC_BYTES]

    def check(self, frame: memoryview, peer: str) -> None:
        """Raise `AlteredFrameError` unless `frame` (header, body and MAC) is the next one."""
        if not hmac.compare_digest(self.next([frame[:-MAC_BYTES]]), frame[-MAC_BYTES:]):
            raise AlteredFrameError(
                f"a frame from {peer} was altered on its way", "somebody may sit between the two: check the network"
            )


class Macs(NamedTuple):
    """Those of a connection, as one side sees them."""

    sent: Mac
    received: Mac
