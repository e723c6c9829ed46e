"""How do bytes get into and out of a socket that never blocks, plain or TLS, and when are they a frame?"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading

import numpy as np
from numpy.typing import NDArray

from paceline.errors import ConfigError
from paceline.wire.frames import (
    CAPS,
    HEADER,
    Buffer,
    Frame,
    Kind,
    LostConnectionError,
    ResetError,
    SilentPeerError,
    frame_buffers,
    read_header,
    views_of,
)
from paceline.wire.macs import MAC_BYTES, Macs

USER_TIMEOUT_SECONDS = 30
"""When the system gives a connection up: for that long, nothing was acknowledged or, on Linux, no room was made."""
FIRST_BYTES = 64 << 10
"""How much is asked for when a frame begins: small frames need one call, and little is moved when it is too much."""
AHEAD_BYTES = 64 << 20
TURN_BYTES = 4 << 20
"""How much of one frame is read before others get a turn."""
TLS_PIECE_BYTES = 64 << 10
WORTH_WAKING_BYTES = 32 << 10
"""A thread that waits for the rest of a frame is not woken up for less: a slow link brings it packet by packet."""
IOV_MAX = 1024

SEE_OTHER_SIDE = "check the log of that process; it may have ended or been killed"


def split_address(address: str) -> tuple[str, int]:
    """Host and port.

    >>> split_address("node7:4000"), split_address("[::1]:5")
    (('node7', 4000), ('::1', 5))
    """
    host, colon, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]") if host.startswith("[") and host.endswith("]") else host
    if not colon or not bare or (":" in bare and bare == host) or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"`{address}` is not an address", "write host:port, or [host]:port for IPv6")
    return bare, int(port)


def join_address(host: str, port: int) -> str:
    """The address of a host and a port, as `split_address` takes it.

    >>> join_address("node7", 4000), join_address("::1", 5)
    ('node7:4000', '[::1]:5')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def wire_error(peer: str, error: OSError) -> LostConnectionError | SilentPeerError:
    """What a socket's error means for the run."""
    if isinstance(error, TimeoutError):
        return SilentPeerError(
            f"{peer} accepted no data for {USER_TIMEOUT_SECONDS} s", "check the network, and that process"
        )
    reason = error.strerror or type(error).__name__
    kind = ResetError if isinstance(error, ConnectionResetError | BrokenPipeError) else LostConnectionError
    return kind(f"the connection to {peer} was lost: {reason}", SEE_OTHER_SIDE)


class Stream:
    """The bytes of a connected socket, which it owns; both counters are of these bytes. No method blocks."""

    wakes_late = True
    """Whether waiting for the socket can be made to last until enough bytes are there."""
    ciphers = False
    """Whether the bytes of the socket are not those of the frames."""

    def __init__(self, connected: socket.socket, peer: str, macs: Macs | None = None) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_SECONDS * 1000)
        self.socket = connected
        self.peer = peer
        self.macs = macs
        self.bytes_sent = 0
        self.bytes_received = 0

    def next_frame(self, kind: Kind, flags: int, parts: tuple[Buffer, ...]) -> tuple[list[Buffer], int]:
        """A frame for `start`, and its bytes. With a MAC, it must be sent before the next one is made."""
        buffers, num_bytes = frame_buffers(kind, flags, parts, self.peer)
        if self.macs is None:
            return buffers, num_bytes
        return [*buffers, self.macs.sent.next(buffers, self.peer)], num_bytes + MAC_BYTES

    def read_into(self, room: memoryview) -> int:
        """Receive into `room`; returns how many bytes arrived, 0 if there are none now."""
        try:
            count = self._receive_into(room)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
        except OSError as error:
            raise wire_error(self.peer, error) from None
        if not count:
            raise LostConnectionError(f"{self.peer} closed the connection", SEE_OTHER_SIDE)
        self.bytes_received += count
        return count

    def start(self, buffers: list[Buffer], num_bytes: int) -> list[memoryview]:
        """Send `buffers`, which hold this many bytes, or the beginning of them; what is left for `write`."""
        if len(buffers) > IOV_MAX:
            return views_of(buffers)
        try:
            count = self.socket.sendmsg(buffers)  # type: ignore[arg-type]  # arrays are buffers
        except BlockingIOError:
            count = 0
        except OSError as error:
            raise wire_error(self.peer, error) from None
        self.bytes_sent += count
        return [] if count == num_bytes else views_of(buffers, count)

    def write(self, views: list[memoryview]) -> int:
        """Send the beginning of `views` and remove it there. Returns how many bytes were sent; 0 if none can be now."""
        try:
            count = self._send(views)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
        except OSError as error:
            raise wire_error(self.peer, error) from None
        self.bytes_sent += count
        views[:] = views_of([*views], count)
        return count

    def wake_at(self, num_bytes: int) -> None:
        """Let the socket be readable when this many bytes are there, or the end."""
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, num_bytes)
        except OSError as error:
            raise wire_error(self.peer, error) from None

    def pending(self) -> int:
        """How many received bytes are kept where waiting for the socket does not see them."""
        return 0

    def close(self) -> None:
        """Close the socket and wake up the threads that wait for it."""
        with contextlib.suppress(OSError):
            # As a plain socket even under TLS, where another thread may be using the cipher's state.
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)
        self.socket.close()

    def _receive_into(self, room: memoryview) -> int:
        return self.socket.recv_into(room)

    def _send(self, views: list[memoryview]) -> int:
        return self.socket.sendmsg(views[:IOV_MAX])


class TlsStream(Stream):
    """The same over TLS. One thread may read while another writes: OpenSSL needs them one after the other."""

    wakes_late = False  # what comes is not what is read
    ciphers = True

    def __init__(self, connected: ssl.SSLSocket, peer: str, macs: Macs | None = None) -> None:
        super().__init__(connected, peer, macs)
        self._tls = connected
        self._using = threading.Lock()

    def start(self, buffers: list[Buffer], num_bytes: int) -> list[memoryview]:
        views = views_of(buffers)
        self.write(views)
        return views

    def pending(self) -> int:
        with self._using:
            return self._tls.pending()

    def _receive_into(self, room: memoryview) -> int:
        with self._using:
            return self._tls.recv_into(room)

    def _send(self, views: list[memoryview]) -> int:
        # After a call that would have blocked, OpenSSL must be given the same bytes, or the same and more, again:
        # views are joined and cut by their sizes alone.
        size = count = 0
        while count < len(views) and size + len(views[count]) <= TLS_PIECE_BYTES:
            size += len(views[count])
            count += 1
        if count > 1:
            views[:count] = [memoryview(b"".join(views[:count]))]
        with self._using:
            return self._tls.send(views[0][:TLS_PIECE_BYTES])


def stream_of(connected: socket.socket, peer: str, macs: Macs | None = None) -> Stream:
    """The stream of a socket, plain or TLS, whose frames have MACs or not."""
    return (TlsStream if isinstance(connected, ssl.SSLSocket) else Stream)(connected, peer, macs)  # type: ignore[arg-type]


class Incoming:
    """Puts the frames of a stream together, in one buffer that is used again for each."""

    def __init__(self, stream: Stream, caps: dict[Kind, int] = CAPS) -> None:
        """`caps` are the greatest lengths of bodies, in bytes."""
        self._stream = stream
        self._caps = caps
        self._mac = stream.macs and stream.macs.received
        self._tail = 0 if self._mac is None else MAC_BYTES
        self._use(np.empty(FIRST_BYTES, np.uint8))
        self._filled = 0
        # Where the frame ends; 0 while its header is not there.
        self._end = 0
        self._handed_out = False
        self._wakes_at = 1

    @property
    def has_more(self) -> bool:
        """Whether bytes after the frame handed out last are here already, so the socket does not report them."""
        return (self._handed_out and self._filled > self._end) or self._stream.pending() > 0

    def next_frame(self) -> Frame | None:
        """The next frame, or None if it is not here yet. What has arrived of it is kept for the next call."""
        if self._handed_out:
            self._remove_frame()
        before = self._filled
        while True:
            if not self._end and self._filled >= HEADER.size:
                self._kind, self._flags, length = read_header(self._view, self._stream.peer, self._caps)
                self._end = HEADER.size + length + self._tail
            if self._end and self._filled >= self._end:
                if self._mac is not None:
                    self._mac.check(self._view[: self._end], self._stream.peer)
                self._handed_out = True
                self._wake_at(1)
                return Frame(self._kind, self._flags, self._buffer[HEADER.size : self._end - self._tail])
            came = self._filled - before
            count = self._stream.read_into(self._room()) if came < TURN_BYTES else 0
            if not count:
                missing = self._end - self._filled
                is_slow = came < WORTH_WAKING_BYTES or self._wakes_at > 1
                self._wake_at(min(missing, WORTH_WAKING_BYTES) if is_slow and missing > 0 else 1)
                return None
            self._filled += count

    def fits(self, room: int) -> bool:
        """Whether what came of the next frames, and the whole of the first one, fit into this many bytes."""
        return max(self._filled, 0 if self._handed_out else self._end) <= room

    def take_out(self) -> memoryview:
        """What came of the next frames, which someone else puts together now; valid until the next call."""
        if self._handed_out:
            self._remove_frame()
        taken = self._view[: self._filled]
        self._filled = self._end = 0
        self._wake_at(1)
        return taken

    def put_back(self, came: bytes) -> None:
        """Continue where someone else has stopped."""
        if len(came) > len(self._buffer):
            self._use(np.empty(len(came), np.uint8))
        self._view[: len(came)] = came
        self._filled = len(came)

    def _wake_at(self, num_bytes: int) -> None:
        if num_bytes != self._wakes_at and self._stream.wakes_late:
            self._stream.wake_at(num_bytes)
            self._wakes_at = num_bytes

    def _remove_frame(self) -> None:
        left = self._filled - self._end
        if left:
            self._view[:left] = self._view[self._end : self._filled]
        self._filled = left
        self._end = 0
        self._handed_out = False

    def _room(self) -> memoryview:
        """Where the next bytes go: no more than this frame needs once its length is known."""
        if not self._end:
            return self._view[self._filled : FIRST_BYTES]
        # A header may claim gigabytes that never come: memory follows what did come.
        ahead = self._filled + max(AHEAD_BYTES, self._filled)
        needed = min(self._end, ahead)
        if needed > len(self._buffer):
            grown = np.empty(min(needed + needed // 4, ahead), np.uint8)
            grown[: self._filled] = self._buffer[: self._filled]
            self._use(grown)
        return self._view[self._filled : needed]

    def _use(self, buffer: NDArray[np.uint8]) -> None:
        self._buffer = buffer
        self._view = buffer.data
