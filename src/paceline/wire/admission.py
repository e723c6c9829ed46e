"""Which clients does a server let in? Those that complete the handshake in time."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable

from paceline.errors import ConfigError
from paceline.wire.frames import WireError
from paceline.wire.handshake import Deadline, greet_client
from paceline.wire.streams import join_address

NUM_HANDSHAKES = 64
"""How many may be under way at a time."""
BACKLOG = 512


class Admission:
    """A listening socket. Each handshake is on a thread of its own, so that a slow client delays nobody."""

    def __init__(self, host: str, port: int, token: bytes, context: ssl.SSLContext | None,
                 admit: Callable[[socket.socket, str], None]) -> None:  # fmt: skip
        """Listen at once; `admit` is called with each known client's socket and address, on the handshake's thread."""
        self.listener = _listen(host, port)
        self.address = join_address(host, self.listener.getsockname()[1])
        self.refused = 0
        self._token = token
        self._context = context
        self._admit = admit
        self._lock = threading.Lock()
        self._under_way: dict[threading.Thread, socket.socket] = {}

    def accept(self) -> None:
        """Begin a handshake with the next client that has connected, if there is one. Does not block.

        Raises `OSError` when this process cannot have more connections for now.
        """
        try:
            connected, where = self.listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        peer = join_address(*where[:2])
        if self._context is not None:
            try:
                connected = self._context.wrap_socket(connected, server_side=True, do_handshake_on_connect=False)
            except OSError:
                self._refuse(connected)
                return
        if len(self._under_way) >= NUM_HANDSHAKES:
            self._refuse(connected)
            return
        arguments = (connected, peer, Deadline(peer))
        thread = threading.Thread(target=self._shake_hands, args=arguments, name="paceline-handshake")
        with self._lock:
            self._under_way[thread] = connected
            thread.start()

    def close(self) -> None:
        """Stop listening, break off the handshakes under way and wait for their threads."""
        self.listener.close()
        with self._lock:
            under_way = list(self._under_way.items())
        for thread, connected in under_way:
            with contextlib.suppress(OSError):
                # As a plain socket even under TLS: the thread is using the cipher's state.
                socket.socket.shutdown(connected, socket.SHUT_RDWR)
            thread.join()

    def _shake_hands(self, connected: socket.socket, peer: str, deadline: Deadline) -> None:
        try:
            if isinstance(connected, ssl.SSLSocket):
                with deadline.limits(connected):
                    connected.do_handshake()
            greet_client(connected, self._token, peer, deadline)
            self._admit(connected, peer)
        except (WireError, OSError):
            # Nobody here waits for this client; that it was refused is counted.
            self._refuse(connected)
        finally:
            with self._lock:
                del self._under_way[threading.current_thread()]

    def _refuse(self, connected: socket.socket) -> None:
        with self._lock:
            self.refused += 1
        connected.close()


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
