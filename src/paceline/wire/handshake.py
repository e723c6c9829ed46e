"""How do two processes of a run make sure that the other one belongs to it?

Each proves that it knows the run's token without showing it: it answers the other's random nonce with a keyed hash.
The side's role is hashed too, so that an answer cannot be sent back to its author. All messages have fixed lengths,
and nothing else is read before the other side is known:

    server: magic, nonce (32)
    client: nonce (32), HMAC-SHA256(token, "client", both nonces) (32)
    server: HMAC-SHA256(token, "server", both nonces) (32)

If frames have MACs (`macs.py`), "client mac" and "server mac" are hashed instead, so that nobody on the way can make
one side believe that they have none. The MACs' keys are hashes of the nonces, too, under the token.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from paceline.wire.frames import LostConnectionError, RefusedError, SilentPeerError
from paceline.wire.macs import Mac, Macs
from paceline.wire.streams import SEE_OTHER_SIDE, wire_error

MAGIC = b"paceline wire 1\n"
NONCE_BYTES = 32
PROOF_BYTES = 32
HANDSHAKE_SECONDS = 5.0

CHECK_ADDRESS = "check the address, and that both sides belong to the same run"


def new_token() -> bytes:
    """A run's secret: 32 random bytes."""
    return secrets.token_bytes(32)


class Deadline:
    """The moment by which a whole handshake, TLS included, must be over."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._end = time.monotonic() + HANDSHAKE_SECONDS

    @contextmanager
    def limits(self, connected: socket.socket) -> Iterator[None]:
        """Let a call of the socket last until then at most; its errors become `SilentPeerError` or others of ours."""
        try:
            left = self._end - time.monotonic()
            if left <= 0:
                raise TimeoutError
            connected.settimeout(left)
            yield
        except TimeoutError:
            late = f"{self._peer} did not finish the handshake in {HANDSHAKE_SECONDS:g} s"
            raise SilentPeerError(late, CHECK_ADDRESS) from None
        except OSError as error:
            raise wire_error(self._peer, error) from None


def greet_client(connected: socket.socket, token: bytes, peer: str, deadline: Deadline, mac: bool,
                 known: Callable[[], None]) -> Macs | None:  # fmt: skip
    """The server's part. Returns when both know each other, else raises a `WireError`.

    `known` is called once the client is known, before it is told so.
    """
    server_nonce = secrets.token_bytes(NONCE_BYTES)
    _send(connected, MAGIC + server_nonce, deadline)
    answer = _receive(connected, NONCE_BYTES + PROOF_BYTES, peer, deadline)
    client_nonce, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
    session = _Session(token, server_nonce + client_nonce, mac)
    if not hmac.compare_digest(proof, session.proof(b"client")):
        raise RefusedError(f"{peer} does not know this run's token", CHECK_ADDRESS)
    known()
    _send(connected, session.proof(b"server"), deadline)
    return session.macs(b"server", b"client")


def greet_server(connected: socket.socket, token: bytes, peer: str, deadline: Deadline, mac: bool) -> Macs | None:
    """The client's part. Returns when both know each other, else raises a `WireError`."""
    magic = _receive(connected, len(MAGIC), peer, deadline)
    if magic != MAGIC:
        raise RefusedError(f"{peer} is not paceline: it began with {magic!r}, expected {MAGIC!r}", CHECK_ADDRESS)
    server_nonce = _receive(connected, NONCE_BYTES, peer, deadline)
    client_nonce = secrets.token_bytes(NONCE_BYTES)
    session = _Session(token, server_nonce + client_nonce, mac)
    _send(connected, client_nonce + session.proof(b"client"), deadline)
    try:
        proof = _receive(connected, PROOF_BYTES, peer, deadline)
    except _ClosedError:
        raise RefusedError(f"{peer} refused this run's token", CHECK_ADDRESS) from None
    if not hmac.compare_digest(proof, session.proof(b"server")):
        raise RefusedError(f"{peer} does not know this run's token", CHECK_ADDRESS)
    return session.macs(b"client", b"server")


class _ClosedError(LostConnectionError):
    """The other side closed the connection properly."""


class _Session(NamedTuple):
    """What both sides know by now, and whether frames have MACs."""

    token: bytes
    nonces: bytes
    mac: bool

    def proof(self, role: bytes) -> bytes:
        return self._hash(role + b" mac" if self.mac else role)

    def macs(self, ours: bytes, theirs: bytes) -> Macs | None:
        if not self.mac:
            return None
        return Macs(Mac(self._hash(b"frames of the " + ours)), Mac(self._hash(b"frames of the " + theirs)))

    def _hash(self, purpose: bytes) -> bytes:
        return hmac.digest(self.token, purpose + self.nonces, "sha256")


def _send(connected: socket.socket, message: bytes, deadline: Deadline) -> None:
    with deadline.limits(connected):
        connected.sendall(message)


def _receive(connected: socket.socket, length: int, peer: str, deadline: Deadline) -> bytes:
    message = b""
    while len(message) < length:
        with deadline.limits(connected):
            piece = connected.recv(length - len(message))
        if not piece:
            raise _ClosedError(f"{peer} closed the connection during the handshake", SEE_OTHER_SIDE)
        message += piece
    return message
