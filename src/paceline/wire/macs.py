"""How does a receiver notice that a frame was altered, left out, repeated or moved on its way?

By a message authentication code (MAC) of 16 bytes behind its body: that of AES-GCM, with the frame's number in this
direction as the nonce, and with nothing to encrypt. Each direction of each connection has its own key, which takes the
run's token to compute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from paceline.errors import ConfigError
from paceline.wire.frames import BadFrameError, Buffer, views_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MAC_BYTES = 16
NONCE_BYTES = 12
MOST_BYTES = 2**31 - 1
"""The longest frame that can have a MAC."""


class AlteredFrameError(BadFrameError):
    """A frame is not the one that the other side sent next."""


class Mac:
    """Computes the MACs of the frames of one direction, one after the other; both sides have one."""

    def __init__(self, key: bytes) -> None:
        cipher, self._invalid = load_cipher()
        self._cipher = cipher(key)
        self._count = 0

    def next(self, buffers: list[Buffer], peer: str) -> bytes:
        """The MAC of the next frame, for `peer`: its header and its body, in any number of parts."""
        covered = b"".join(views_of(buffers))
        _check_length(len(covered), peer)
        return self._cipher.encrypt(self._nonce(), b"", covered)

    def check(self, frame: memoryview, peer: str) -> None:
        """Raise `AlteredFrameError` unless `frame` (header, body and MAC) is the next one."""
        covered = frame[:-MAC_BYTES]
        _check_length(len(covered), peer)
        try:
            self._cipher.decrypt(self._nonce(), frame[-MAC_BYTES:], covered)
        except self._invalid:
            raise AlteredFrameError(
                f"a frame from {peer} was altered in transit",
                "someone may be intercepting the connection: check the network",
            ) from None

    def _nonce(self) -> bytes:
        self._count += 1
        return self._count.to_bytes(NONCE_BYTES, "little")


class Macs(NamedTuple):
    """Those of a connection, as one side sees them."""

    sent: Mac
    received: Mac


def load_cipher() -> tuple[type[AESGCM], type[Exception]]:
    """AES-GCM, and what it raises; `ConfigError` if its package is not installed."""
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise ConfigError(
            "`wire.mac` needs the package `cryptography`, which is not installed", "pip install 'paceline[tls]'"
        ) from None
    return AESGCM, InvalidTag


def _check_length(length: int, peer: str) -> None:
    if length > MOST_BYTES:
        raise BadFrameError(
            f"a frame of {length:,} bytes, to or from {peer}, is too long for a MAC, which covers {MOST_BYTES:,}",
            "spread the parameters over more shards, or use `wire.tls`",
        )
