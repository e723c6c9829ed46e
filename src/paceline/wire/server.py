"""How does a shard, or the coordinator, talk to many peers? In one thread, which serves the peers that are ready."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from paceline.wire.admission import Admission
from paceline.wire.frames import CAPS, Buffer, Frame, Kind, WireError, views_of
from paceline.wire.macs import AlteredFrameError, Macs
from paceline.wire.spinning import Spinner
from paceline.wire.streams import Incoming, stream_of
from paceline.wire.tls import Tls, server_context

STALL_SECONDS = 30.0
"""How long a peer may take nothing of what is queued for it."""
FIRST_FRAME_SECONDS = 30.0
"""How long a peer may take to send its first frame. All clients of a run send one at once."""
QUEUE_BYTES = 32 << 20
"""How many bytes may be queued for a peer that does not take them, in several frames. One frame may be larger."""
MOST_IN_FLIGHT = 2
"""How many VALUES frames may be queued whatever their size, up to `CAPS`: a worker asks for no more at a time."""
SWEEP_SECONDS = 1.0
BUSY_TURNS = 8
"""After how many turns connections that are lent are served, however busy other peers keep Python."""

_READ = selectors.EVENT_READ
_WRITE = selectors.EVENT_WRITE


class Service(Protocol):
    """What a server does for its peers. All is called on the thread of `Server.serve`."""

    def received(self, peer: Peer, frame: Frame) -> None:
        """A frame came; it is valid during this call. A `WireError` raised here closes this peer and nothing else."""

    def closed(self, peer: Peer) -> None:
        """A peer is gone, for whatever reason. Called once for each that had connected, unless the server closes."""

    def tick(self) -> None:
        """Some time has passed."""


class ServingLoop(Protocol):
    """A compiled loop that serves connections without Python, and returns for whatever it does not know.

    Connections are lent to it, and come back when Python has something to do with them. All on the thread of `serve`.
    """

    def wanted(self) -> list[Peer]:
        """The connections that it would serve now."""

    def has_room(self, peer: Peer) -> bool:
        """Whether there is room for what has come from a peer."""

    def lend(self, peer: Peer, came: memoryview) -> None:
        """Serve this connection; `came` was received of its next frames."""

    def take_back(self, peer: Peer) -> tuple[bytes, list[bytes]]:
        """Stop serving it. Returns what was received of its next frames, and the replies (or parts) still to send."""

    def serve(self, descriptor: int, seconds: float, spin_seconds: float) -> Peer | None:
        """Serve until `descriptor` is readable or the time is over; returns a connection that needs Python, if any."""


class Peer:
    """The server's end of one connection. For the thread of `Server.serve` alone."""

    def __init__(self, server: Server, connected: socket.socket, address: str, macs: Macs | None) -> None:
        self.address = address
        self.arrived = 0
        """When the loop woke up for the frame that is being received (`time.perf_counter_ns`)."""
        self.tag: Any = None
        """Free for the service."""
        self.open = True
        self.stream = stream_of(connected, address, macs)
        self.incoming = Incoming(self.stream, server.caps)
        self.stalled_since: float | None = None
        """When the socket last took bytes (`time.monotonic`), if some are queued for it."""
        self.lent_to: ServingLoop | None = None
        """Who serves this connection without Python, if anyone does."""
        self.silent_since: float | None = time.monotonic()
        """When it connected, if it has not sent a whole frame yet."""
        self._server = server
        self._queue: list[memoryview] = []
        # Since the queue was empty.
        self._num_queued = 0

    def send(self, kind: Kind, flags: int, *parts: Buffer) -> None:
        """Send a frame whose body is `parts`, contiguous and possibly empty. Does not block.

        What the socket does not take now is copied and sent later; a peer that lets too much of it wait is closed. To
        a peer that is closed, or is found to be gone, nothing is sent; `Service.closed` tells of it.
        """
        if self.lent_to is not None:
            self._server.take_back(self)
        buffers, num_bytes = self.stream.next_frame(kind, flags, parts)
        if not self.open:
            return
        try:
            left = views_of(buffers) if self._queue else self.stream.start(buffers, num_bytes)
        except WireError:
            return self.close()
        if left:
            self.send_later(kind, left, num_bytes)

    def send_later(self, kind: Kind, left: Sequence[Buffer], num_bytes: int) -> None:
        """Queue what is left of a frame of this many bytes."""
        if not self._queue:
            self.stalled_since = time.monotonic()
            self._server.watch(self, _READ | _WRITE)
        elif not self._may_queue(kind, num_bytes):
            return self.close()
        self._num_queued += 1
        self._queue.extend(memoryview(bytes(view)) for view in left)

    @property
    def can_be_lent(self) -> bool:
        """Whether others may read and write the socket: bytes are those of frames, and nothing waits to be sent."""
        plain = not self.stream.ciphers and self.stream.macs is None
        return plain and self.open and self.lent_to is None and not self._queue

    def _may_queue(self, kind: Kind, num_bytes: int) -> bool:
        """Whether one more frame may wait behind others."""
        if kind is Kind.VALUES and self._num_queued < MOST_IN_FLIGHT:
            return True
        return num_bytes + sum(len(view) for view in self._queue) <= QUEUE_BYTES

    def close(self) -> None:
        """Close the connection and forget what is queued; a second time does nothing."""
        if self.open:
            self.open = False
            self._queue.clear()
            self._server.forget(self)
            self.stream.close()

    def send_queued(self) -> None:
        """Send what the socket takes of the queue. For the loop."""
        try:
            while self._queue and self.stream.write(self._queue):
                pass
        except WireError:
            return self.close()
        self.stalled_since = time.monotonic() if self._queue else None
        if not self._queue:
            self._num_queued = 0
            self._server.watch(self, _READ)


class Server:
    """Listens from the moment it is made; serves while `serve` runs."""

    def __init__(self, host: str, port: int, token: bytes, tls: Tls | None, *, mac: bool = False) -> None:
        """Port 0 is any free one; `mac`: frames have MACs. Raises `ConfigError` where it cannot listen."""
        context = None if tls is None else server_context(tls)
        self._admission = Admission(host, port, token, context, self._admit, mac)
        self.address = self._admission.address
        self.caps = CAPS
        """The greatest length of a body that peers may send, in bytes."""
        self.peers: set[Peer] = set()
        self._gone: list[Peer] = []
        # Peers with received bytes that the socket does not tell of; ordered, as sets are not.
        self._with_more: dict[Peer, None] = {}
        self._admitted: deque[tuple[socket.socket, str, Macs | None]] = deque()
        self._num_altered = self._num_silent = self._num_lent = 0
        self._calls: deque[Callable[[], None]] = deque()
        self._stopping = self._closed = False
        self._waking = threading.Lock()
        self._wake_end, self._loop_end = socket.socketpair()
        self._wake_end.setblocking(False)
        self._loop_end.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._loop_end, _READ, self._woken)
        self._selector.register(self._admission.listener, _READ, self._accept)
        self._next_sweep = 0.0
        self.spinner = Spinner(partial(self._selector.select, 0))

    @property
    def refused(self) -> int:
        """How many connections were refused: a wrong token, not paceline, too slow, too many at a time, or cut because
        a frame had been altered or none ever came.
        """
        return self._admission.refused + self._num_altered + self._num_silent

    def serve(self, service: Service, tick_seconds: float, spin_seconds: float = 0.0,
              loop: ServingLoop | None = None) -> None:  # fmt: skip
        """Serve until `stop`; what the service raises, other than a `WireError` by `received`, ends it too.

        After each frame, spin for the next one this long before going to sleep, giving way to others that can run.
        Connections that `loop` wants are lent to it while there is nothing else to do.
        """
        next_tick, num_busy = time.monotonic() + tick_seconds, 0
        while not self._stopping:
            now = time.monotonic()
            if now >= next_tick:
                next_tick = now + tick_seconds
                service.tick()
            if now >= self._next_sweep:
                self._sweep(now)
            busy = self._with_more or self._calls or self._gone
            wait_seconds = 0.0 if busy else max(0.0, min(next_tick, self._next_sweep) - now)
            num_busy = num_busy + 1 if busy else 0
            if loop is not None and self._lend(loop) and num_busy % BUSY_TURNS == 0:
                self._serve_lent(loop, wait_seconds, spin_seconds)
                wait_seconds = 0.0
            spins = min(spin_seconds, wait_seconds) if self.peers else 0.0
            events = (self.spinner.spin(spins) if spins > 0 else []) or self._selector.select(wait_seconds)
            self._turn(service, events, woke=time.perf_counter_ns())
        self._stopping = False

    def stop(self) -> None:
        """Let `serve` return soon, or at once when it is called next. From any thread."""
        self._stopping = True
        self._wake()

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call `function` on the thread of `serve` soon. From any thread."""
        self._calls.append(function)
        self._wake()

    def close(self) -> None:
        """Close all connections and stop listening. Not while `serve` runs; the service is not told."""
        self._admission.close()
        with self._waking:
            self._closed = True
            self._wake_end.close()
        self._loop_end.close()
        for peer in list(self.peers):
            peer.close()
        for connected, *_ in self._admitted:
            connected.close()
        self._selector.close()

    def watch(self, peer: Peer, events: int) -> None:
        """Wake up for these events of a peer. For peers."""
        self._selector.modify(peer.stream.socket, events, peer)

    def forget(self, peer: Peer) -> None:
        """Stop watching a peer, and tell the service later. For peers."""
        if peer.lent_to is None:
            self._selector.unregister(peer.stream.socket)
        else:
            peer.lent_to.take_back(peer)
            peer.lent_to = None
            self._num_lent -= 1
        self.peers.remove(peer)
        self._with_more.pop(peer, None)
        self._gone.append(peer)

    def take_back(self, peer: Peer) -> None:
        """Serve a connection that was lent in Python again."""
        assert peer.lent_to is not None
        came, replies = peer.lent_to.take_back(peer)
        peer.lent_to = None
        self._num_lent -= 1
        self._selector.register(peer.stream.socket, _READ, peer)
        peer.incoming.put_back(came)
        # The socket does not report what has already been received.
        self._with_more[peer] = None
        for reply in replies:
            if peer.open:
                peer.send_later(Kind.VALUES, [reply], len(reply))

    def take_all_back(self) -> None:
        """Serve all connections in Python again. What the loop knows about their frames may change now."""
        for peer in list(self.peers):
            if peer.lent_to is not None:
                self.take_back(peer)

    def _lend(self, loop: ServingLoop) -> bool:
        """Lend the connections that can be; whether any is lent."""
        for peer in loop.wanted():
            if peer.can_be_lent and peer not in self._with_more and loop.has_room(peer):
                self._selector.unregister(peer.stream.socket)
                loop.lend(peer, peer.incoming.take_out())
                peer.lent_to = loop
                self._num_lent += 1
        return self._num_lent > 0

    def _serve_lent(self, loop: ServingLoop, seconds: float, spin_seconds: float) -> None:
        needs_python = loop.serve(self._selector.fileno(), seconds, spin_seconds)
        if needs_python is not None:
            self.take_back(needs_python)

    def _turn(self, service: Service, events: list[tuple[selectors.SelectorKey, int]], woke: int) -> None:
        """Give each peer that is ready one frame's time."""
        ready = self._with_more
        self._with_more = {}
        for key, mask in events:
            peer = key.data
            if not isinstance(peer, Peer):
                key.data()
                continue
            if mask & _WRITE and peer.open:
                peer.send_queued()
            if mask & _READ:
                ready[peer] = None
        for peer in ready:
            if peer.open:
                peer.arrived = woke
                self._receive(service, peer)
        self._open_admitted()
        # Those that a call adds are for the next turn.
        for _ in range(len(self._calls)):
            self._calls.popleft()()
        while self._gone:
            service.closed(self._gone.pop(0))

    def _receive(self, service: Service, peer: Peer) -> None:
        try:
            frame = peer.incoming.next_frame()
            if frame is not None:
                peer.silent_since = None
                service.received(peer, frame)
        except WireError as error:
            self._num_altered += isinstance(error, AlteredFrameError)
            return peer.close()
        if peer.open and peer.incoming.has_more:
            self._with_more[peer] = None

    def _open_admitted(self) -> None:
        while self._admitted:
            connected, address, macs = self._admitted.popleft()
            try:
                peer = Peer(self, connected, address, macs)
            except OSError:
                connected.close()
                continue
            self.peers.add(peer)
            self._selector.register(connected, _READ, peer)
            # TLS may have received the beginning of a frame with the handshake's end.
            self._with_more[peer] = None

    def _accept(self) -> None:
        try:
            self._admission.accept()
        except OSError:
            # Out of descriptors: leave clients waiting until the next sweep instead of trying without end.
            self._selector.unregister(self._admission.listener)

    def _sweep(self, now: float) -> None:
        self._next_sweep = now + SWEEP_SECONDS
        if self._admission.listener not in self._selector.get_map():
            self._selector.register(self._admission.listener, _READ, self._accept)
        for peer in list(self.peers):
            if peer.stalled_since is not None and now - peer.stalled_since > STALL_SECONDS:
                peer.close()
            elif peer.silent_since is not None and now - peer.silent_since > FIRST_FRAME_SECONDS:
                self._num_silent += 1
                peer.close()

    def _admit(self, connected: socket.socket, address: str, macs: Macs | None) -> None:
        self._admitted.append((connected, address, macs))
        self._wake()

    def _wake(self) -> None:
        # A full pipe wakes the loop up as well.
        with self._waking, contextlib.suppress(BlockingIOError):
            if not self._closed:
                self._wake_end.send(b"\0")

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._loop_end.recv(4096)
