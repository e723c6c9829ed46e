"""Servers for the tests of the wire: one that echoes, one that is a bare socket."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

from paceline.wire.connection import Connection, connect
from paceline.wire.frames import Frame, Kind
from paceline.wire.server import Peer, Server, Service
from paceline.wire.streams import stream_of
from paceline.wire.tls import Tls

TOKEN = bytes(range(32))
SECONDS = 10.0
"""How long anything in these tests may take at most."""


class Echo:
    """Sends every frame back, and notes what it was told."""

    def __init__(self) -> None:
        self.gone: list[Peer] = []
        self.num_received = 0
        self.num_ticks = 0

    def received(self, peer: Peer, frame: Frame) -> None:
        self.num_received += 1
        peer.send(frame.kind, frame.flags, frame.body)

    def closed(self, peer: Peer) -> None:
        assert peer not in self.gone
        self.gone.append(peer)

    def tick(self) -> None:
        self.num_ticks += 1


@contextlib.contextmanager
def serving(
    service: Service, tls: Tls | None = None, tick_seconds: float = 0.05, mac: bool = False
) -> Iterator[Server]:
    """A server that runs on a thread of its own while it lasts; what the service raises is raised at the end."""
    server = Server("127.0.0.1", 0, TOKEN, tls, mac=mac)
    failures: list[BaseException] = []

    def serve() -> None:
        try:
            server.serve(service, tick_seconds)
        except BaseException as error:  # noqa: BLE001 (raised by the test's thread)
            failures.append(error)

    thread = threading.Thread(target=serve, name="serve")
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(SECONDS)
        assert not thread.is_alive()
        server.close()
    if failures:
        raise failures[0]


@contextlib.contextmanager
def bare_pair() -> Iterator[tuple[Connection, socket.socket]]:
    """A connection and, at its other end, a bare blocking socket that may say anything; no handshake was made."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname(), SECONDS)
        far, _ = listener.accept()
    far.settimeout(SECONDS)
    with Connection(stream_of(near, "127.0.0.1:1")) as connection, far:
        yield connection, far


def read_exactly(connected: socket.socket, length: int) -> bytes:
    """This many bytes, or fewer if the other side closes before."""
    return connected.recv(length, socket.MSG_WAITALL)


def is_served(connection: Connection) -> bool:
    """Whether the server still echoes to this connection."""
    connection.send(Kind.MESSAGE, 9, b"still there?")
    frame = connection.receive(SECONDS)
    return frame.body.tobytes() == b"still there?" and frame.flags == 9


def send_many(connection: Connection, num_bytes: int, kind: Kind = Kind.CHUNK) -> None:
    """Send more than the sockets on the way can keep, a hundred frames of this many bytes."""
    for _ in range(100):
        connection.send(kind, 0, bytes(num_bytes))


def joined(server: Server, tls: Tls | None = None) -> Connection:
    """A connection to a server of these tests."""
    return connect(server.address, TOKEN, tls)


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until it is so, which it must be soon."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)
