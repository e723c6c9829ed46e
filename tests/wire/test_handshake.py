"""Only who knows the run's token is let in, on either side."""

from __future__ import annotations

import contextlib
import hmac
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from paceline.wire import admission, handshake
from paceline.wire import connection as connection_module
from paceline.wire.connection import connect
from paceline.wire.frames import LostConnectionError, RefusedError, SilentPeerError
from paceline.wire.handshake import MAGIC, new_token
from tests.wire.serving import SECONDS, TOKEN, Echo, is_served, joined, read_exactly, serving, wait_until


@contextlib.contextmanager
def fake_server(act: Callable[[socket.socket], None], num_clients: int = 1) -> Iterator[str]:
    """The address of a server that does with its first clients whatever it likes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        over = threading.Event()

        def serve() -> None:
            for _ in range(num_clients):
                with contextlib.suppress(OSError):
                    while not select.select([listener], [], [], 0.02)[0]:
                        if over.is_set():
                            return
                    with listener.accept()[0] as connected:
                        connected.settimeout(SECONDS)
                        act(connected)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        over.set()
        thread.join(SECONDS)
        assert not thread.is_alive()


def test_tokens_are_long_and_differ() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(len(token) == 32 for token in tokens)


def test_a_client_with_a_wrong_token_is_refused_and_told_so() -> None:
    with serving(Echo()) as server:
        with pytest.raises(RefusedError, match="refused this run's token") as caught:
            connect(server.address, new_token(), None)
        assert server.address in caught.value.message
        assert caught.value.hint
        wait_until(lambda: server.refused == 1)
        with joined(server) as connection:
            assert is_served(connection)


def test_a_client_refuses_a_server_with_a_wrong_token() -> None:
    def act(connected: socket.socket) -> None:
        connected.sendall(MAGIC + bytes(32))
        nonce = read_exactly(connected, 64)[:32]
        connected.sendall(hmac.digest(bytes(32), b"server" + bytes(32) + nonce, "sha256"))

    with fake_server(act) as address, pytest.raises(RefusedError, match="does not know"):
        connect(address, TOKEN, None)


def test_a_client_is_not_fooled_by_its_own_answer() -> None:
    def act(connected: socket.socket) -> None:
        connected.sendall(MAGIC + bytes(32))
        connected.sendall(read_exactly(connected, 64)[32:])

    with fake_server(act) as address, pytest.raises(RefusedError, match="does not know"):
        connect(address, TOKEN, None)


def test_a_server_is_not_fooled_by_what_another_connection_was_told() -> None:
    """Who relays one connection's challenge to a second one, as a server would, learns nothing of use."""
    with serving(Echo()) as server:
        host, port = server.address.split(":")
        with socket.create_connection((host, int(port)), SECONDS) as first:
            challenge = read_exactly(first, len(MAGIC) + 32)[len(MAGIC) :]
            with socket.create_connection((host, int(port)), SECONDS) as second:
                read_exactly(second, len(MAGIC) + 32)
                # The second server is asked to prove itself over the first one's nonce, without a proof of ours.
                second.sendall(challenge + bytes(32))
                assert second.recv(32) == b""
            first.sendall(challenge + bytes(32))
            assert first.recv(32) == b""
        wait_until(lambda: server.refused == 2)


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n", b"SSH-2.0-OpenSSH_9.6\r\n"])
def test_what_is_not_paceline_is_refused_at_once(greeting: bytes) -> None:
    with fake_server(lambda it: it.sendall(greeting)) as address, pytest.raises(RefusedError, match="is not paceline"):
        connect(address, TOKEN, None)


def test_a_server_that_hangs_up_is_lost_not_refused() -> None:
    with fake_server(lambda connected: None) as address, pytest.raises(LostConnectionError):
        connect(address, TOKEN, None)


@pytest.mark.parametrize("said", [b"", MAGIC, MAGIC + bytes(32)])
def test_a_server_that_falls_silent_is_given_up_at_the_deadline(monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_SECONDS", 0.1)

    def act(connected: socket.socket) -> None:
        connected.sendall(said)
        while connected.recv(100):
            pass

    with fake_server(act) as address, pytest.raises(SilentPeerError, match=r"handshake in 0\.1 s"):
        connect(address, TOKEN, None)


def test_a_client_that_trickles_is_refused_at_the_deadline_while_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving(Echo()) as server, joined(server) as other:
        monkeypatch.setattr(handshake, "HANDSHAKE_SECONDS", 0.3)
        host, port = server.address.split(":")
        with socket.create_connection((host, int(port)), SECONDS) as slow:
            read_exactly(slow, len(MAGIC) + 32)
            slow.settimeout(0.01)
            closed = False
            while not closed:
                assert is_served(other)
                with contextlib.suppress(TimeoutError, ConnectionError):
                    slow.sendall(b"x")
                try:
                    closed = slow.recv(1) == b""
                except TimeoutError:
                    continue
                except ConnectionError:
                    closed = True
        wait_until(lambda: server.refused == 1)
        assert is_served(other)


def test_a_client_that_is_broken_off_tries_again() -> None:
    """As often as it takes, less and less often; a server that hangs up properly is not asked again."""
    attempts: list[float] = []

    def act(connected: socket.socket) -> None:
        attempts.append(time.monotonic())
        if len(attempts) == 1:
            connected.sendall(MAGIC + bytes(32))
            read_exactly(connected, 64)
        if len(attempts) < 5:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, admission.RESET)

    with fake_server(act, num_clients=5) as address, pytest.raises(LostConnectionError, match="closed the connection"):
        connect(address, TOKEN, None)
    assert len(attempts) == 5
    assert attempts[4] - attempts[3] > 0.075


def test_trying_again_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "RETRY_SECONDS", 0.1)

    def act(connected: socket.socket) -> None:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, admission.RESET)

    began = time.monotonic()
    with fake_server(act, num_clients=99) as address, pytest.raises(LostConnectionError, match="reset"):
        connect(address, TOKEN, None)
    assert time.monotonic() - began < 2
