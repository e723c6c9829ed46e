"""Which clients does a server let in? Those that complete the handshake in time."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial

from paceline.errors import ConfigError
from paceline.wire.frames import LostConnectionError, WireError
from paceline.wire.handshake import Deadline, greet_client
from paceline.wire.macs import Macs, load_cipher
from paceline.wire.streams import join_address

NUM_HANDSHAKES = 64
"""How many clients that are not known yet there may be at a time."""
BACKLOG = 512
RESET = struct.pack("ii", 1, 0)
"""Of `SO_LINGER`: closing is a reset, which tells the client to try again. One that is refused sees a proper end."""

Admit = Callable[[socket.socket, str, Macs | None], None]


class Admission:
    """A listening socket. Each handshake is on a thread of its own, so that a slow client delays nobody.

    When there are too many, the oldest one of the host that has most is broken off: clients of the run need
    milliseconds, so that idle ones do not keep them out, wherever those come from.
    """

    def __init__(self, host: str, port: int, token: bytes, context: ssl.SSLContext | None, admit: Admit,
                 mac: bool = False) -> None:  # fmt: skip
        """Listen at once; `admit` is called with each known client's socket, address and MACs, on the handshake's
        thread.
        """
        self.listener = _listen(host, port)
        self.address = join_address(host, self.listener.getsockname()[1])
        self.refused = 0
        self._token = token
        if mac:
            load_cipher()
        self._context = context
        self._admit = admit
        self._mac = mac
        self._lock = threading.Lock()
        # The oldest first; those whose client is known are in `_threads` only.
        self._unknown: dict[_Handshake, None] = {}
        self._threads: set[_Handshake] = set()

    def accept(self) -> None:
        """Begin a handshake with the next client that has connected, if there is one. Does not block.

        Raises `OSError` when this process cannot have more connections for now.
        """
        try:
            connected, where = self.listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        if self._context is not None:
            try:
                connected = self._context.wrap_socket(connected, server_side=True, do_handshake_on_connect=False)
            except OSError:
                self._refuse(connected)
                return
        handshake = _Handshake(connected, where[0], join_address(*where[:2]))
        handshake.thread = threading.Thread(target=self._shake_hands, args=(handshake,), name="paceline-handshake")
        with self._lock:
            if len(self._unknown) >= NUM_HANDSHAKES:
                self._evict_one()
            self._unknown[handshake] = None
            self._threads.add(handshake)
            try:
                handshake.thread.start()
            except RuntimeError as error:  # no more threads
                self._forget(handshake)
                connected.close()
                raise OSError(*error.args) from None

    def close(self) -> None:
        """Stop listening, break off the handshakes under way and wait for their threads."""
        self.listener.close()
        with self._lock:
            under_way = list(self._threads)
        for handshake in under_way:
            handshake.break_off(socket.SHUT_RDWR)
            handshake.thread.join()

    def _evict_one(self) -> None:
        counts = Counter(handshake.host for handshake in self._unknown)
        most = max(counts.values())
        oldest = next(handshake for handshake in self._unknown if counts[handshake.host] == most)
        del self._unknown[oldest]
        oldest.is_evicted = True
        oldest.break_off(socket.SHUT_RD)

    def _shake_hands(self, handshake: _Handshake) -> None:
        connected, peer = handshake.connected, handshake.peer
        try:
            deadline = Deadline(peer)
            if isinstance(connected, ssl.SSLSocket):
                with deadline.limits(connected):
                    connected.do_handshake()
            known = partial(self._known, handshake)
            macs = greet_client(connected, self._token, peer, deadline, self._mac, known)
            self._admit(connected, peer, macs)
        except (WireError, OSError):
            # Nobody here waits for this client; that it was refused is counted.
            if handshake.is_evicted:
                with contextlib.suppress(OSError):
                    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self._refuse(connected)
        finally:
            with self._lock:
                self._forget(handshake)

    def _known(self, handshake: _Handshake) -> None:
        """The client knows the token: protect its handshake from eviction. Raises if it has been evicted."""
        with self._lock:
            if handshake.is_evicted:
                raise LostConnectionError(f"the handshake with {handshake.peer} was broken off")
            del self._unknown[handshake]

    def _forget(self, handshake: _Handshake) -> None:
        self._unknown.pop(handshake, None)
        self._threads.discard(handshake)

    def _refuse(self, connected: socket.socket) -> None:
        with self._lock:
            self.refused += 1
        connected.close()


class _Handshake:
    """A handshake that is under way."""

    thread: threading.Thread

    def __init__(self, connected: socket.socket, host: str, peer: str) -> None:
        self.connected = connected
        self.host = host
        self.peer = peer
        self.is_evicted = False

    def break_off(self, how: int) -> None:
        """Wake up the thread that waits for the client."""
        with contextlib.suppress(OSError):
            # As a plain socket even under TLS: the thread is using the cipher's state.
            socket.socket.shutdown(self.connected, how)


def _listen(host: str, port: int) -> socket.socket:
    try:
        if not 0 <= port < 65536:
            raise OverflowError("a port is a number from 0 to 65535")
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with contextlib.ExitStack() as unless_listening:
            listener = unless_listening.enter_context(socket.socket(family, kind, protocol))
            # A server that was restarted gets its port back at once.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            listener.listen(BACKLOG)
            listener.setblocking(False)
            unless_listening.pop_all()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"cannot listen on {join_address(host, port)}: {reason}",
            "choose an address of this machine, and another port, or port 0 for any free one",
        ) from None
    return listener
