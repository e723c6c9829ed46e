"""How does a worker, or any other client, talk to a server? By a connection whose calls block."""

from __future__ import annotations

import random
import select
import socket
import ssl
import threading
import time
from functools import partial

from paceline.wire.frames import Buffer, Frame, Kind, LostConnectionError, RefusedError, ResetError, SilentPeerError
from paceline.wire.handshake import CHECK_ADDRESS, Deadline, greet_server
from paceline.wire.spinning import Spinner
from paceline.wire.streams import Incoming, Stream, split_address, stream_of, wire_error
from paceline.wire.tls import Tls, client_context

SEND_SECONDS = 30.0
RETRY_SECONDS = 10.0
"""For how long a client tries again when the server breaks its handshakes off because there are too many."""
FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.5
_LONGEST_POLL_MS = 2**31 - 1


def connect(address: str, token: bytes, tls: Tls | None, timeout_seconds: float = 5.0, *,
            mac: bool = False) -> Connection:  # fmt: skip
    """Connect to the server at `address` ("host:port", "[::1]:5") and make sure that it belongs to the run.

    An attempt blocks for `timeout_seconds`, then for a handshake's, at most. If the server resets the connection during
    the handshake, tries again, less and less often, for `RETRY_SECONDS`. Raises `LostConnectionError` if nobody
    listens or the server hangs up, `SilentPeerError` if nothing answers in time, `RefusedError` if the server does not
    belong to the run.
    """
    until, pause = time.monotonic() + RETRY_SECONDS, FIRST_PAUSE_SECONDS
    while True:
        try:
            return _greet(_dial(address, timeout_seconds), address, token, tls, mac)
        except ResetError:
            if time.monotonic() + pause > until:
                raise
        # Not all clients of a server at the same time.
        time.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def _dial(address: str, timeout_seconds: float) -> socket.socket:
    try:
        return socket.create_connection(split_address(address), timeout_seconds)
    except TimeoutError:
        raise SilentPeerError(f"{address} did not answer in {timeout_seconds:g} s", "check the address") from None
    except ConnectionResetError as error:
        raise wire_error(address, error) from None
    except OSError as error:
        raise LostConnectionError(
            f"cannot connect to {address}: {error.strerror or error}",
            "check the address, and that the run is still running",
        ) from None


def _greet(connected: socket.socket, address: str, token: bytes, tls: Tls | None, mac: bool) -> Connection:
    try:
        deadline = Deadline(address)
        if tls is not None:
            connected = _speak_tls(connected, tls, address, deadline)
        macs = greet_server(connected, token, address, deadline, mac)
        return Connection(stream_of(connected, address, macs))
    except BaseException:
        connected.close()
        raise


def _speak_tls(connected: socket.socket, tls: Tls, peer: str, deadline: Deadline) -> ssl.SSLSocket:
    with deadline.limits(connected):
        try:
            return client_context(tls).wrap_socket(connected)
        except (TimeoutError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
            raise
        except ssl.SSLError as error:
            said = f"{peer} does not speak TLS with this run's certificate: {error.reason or error}"
            raise RefusedError(said, CHECK_ADDRESS) from None


class Connection:
    """A connection to a server that is known to belong to the run.

    One thread receives; any may send. `close` wakes both up.
    """

    def __init__(self, stream: Stream) -> None:
        self.peer = stream.peer
        self.stream = stream
        """Its bytes: how many were sent and received, headers included, and the socket, for its statistics only."""
        self._incoming = Incoming(stream)
        self._sending = threading.Lock()
        self._readable = select.poll()
        self._readable.register(stream.socket, select.POLLIN)
        self._writable = select.poll()
        self._writable.register(stream.socket, select.POLLOUT)
        self.spinner = Spinner(partial(self._readable.poll, 0))

    def send(self, kind: Kind, flags: int, *parts: Buffer) -> None:
        """Send a frame whose body is `parts`, one after the other; blocks until the socket has taken it.

        Parts are contiguous, and may be empty. Raises `SilentPeerError` when the other side takes nothing for
        `SEND_SECONDS`. Whenever it raises, the connection is closed: half a frame cannot be taken back.
        """
        with self._sending:
            buffers, num_bytes = self.stream.next_frame(kind, flags, parts)
            try:
                views = self.stream.start(buffers, num_bytes)
                while views:
                    if not self.stream.write(views) and not self._writable.poll(int(SEND_SECONDS * 1000)):
                        raise SilentPeerError(
                            f"{self.peer} accepted no data for {SEND_SECONDS:g} s", "check whether it is still running"
                        )
            except BaseException:
                self.close()
                raise

    def receive(self, silence_seconds: float, spin_seconds: float = 0.0) -> Frame:
        """Wait for the next frame, which is valid until the next call; spin for it this long before going to sleep.

        Raises `SilentPeerError` if no byte arrives for `silence_seconds`; the next call then continues where this
        one ended, even in the middle of a frame.
        """
        milliseconds = int(min(silence_seconds * 1000, _LONGEST_POLL_MS))
        incoming, stream = self._incoming, self.stream
        while True:
            # What is here already does not make the socket readable.
            ready = (
                incoming.has_more
                or (spin_seconds > 0 and self.spinner.spin(spin_seconds))
                or self._readable.poll(milliseconds)
            )
            if stream.socket.fileno() < 0:
                raise LostConnectionError(f"the connection to {self.peer} was closed on this side")
            before = stream.bytes_received
            frame = incoming.next_frame()
            if frame is not None:
                return frame
            # Nor do a few bytes of a large frame.
            if not ready and stream.bytes_received == before:
                raise SilentPeerError(
                    f"received nothing from {self.peer} for {silence_seconds:g} s", "check whether it is still running"
                )

    def close(self) -> None:
        """Close the connection; a second time does nothing."""
        self.stream.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
