"""Who is let in, how many may knock at a time, and what a listening socket leaves behind."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest

from paceline.errors import ConfigError
from paceline.wire import admission, handshake
from paceline.wire.admission import Admission
from paceline.wire.connection import connect
from paceline.wire.frames import RefusedError, WireError
from paceline.wire.handshake import MAGIC
from paceline.wire.macs import Macs
from paceline.wire.streams import split_address
from paceline.wire.tls import Tls, server_context
from tests.skips import needs_linux
from tests.wire.hostile import harassed
from tests.wire.serving import SECONDS, TOKEN, Echo, is_served, joined, read_exactly, serving, wait_until


class Door:
    """An admission, and those that it let in."""

    def __init__(self, tls: Tls | None = None, mac: bool = False) -> None:
        self.admitted: list[tuple[socket.socket, str, Macs | None]] = []
        context = None if tls is None else server_context(tls)
        self.admission = Admission("127.0.0.1", 0, TOKEN, context, lambda *known: self.admitted.append(known), mac)
        self.address = self.admission.address
        self._closed = threading.Event()
        self._accepting = threading.Thread(target=self._accept)

    def __enter__(self) -> Door:
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        for connected, *_rest in self.admitted:
            connected.close()

    def close(self) -> None:
        self._closed.set()
        self._accepting.join(SECONDS)
        self.admission.close()

    def _accept(self) -> None:
        while not self._closed.wait(0.002):
            self.admission.accept()


def num_handshakes() -> int:
    return sum(thread.name == "paceline-handshake" for thread in threading.enumerate())


@pytest.mark.parametrize("mac", [False, True])
def test_a_client_of_the_run_is_let_in_once(tls: Tls | None, mac: bool) -> None:
    with Door(tls, mac) as door, connect(door.address, TOKEN, tls, mac=mac) as client:
        wait_until(lambda: len(door.admitted) == 1)
        (_, peer, macs), *_ = door.admitted
        assert split_address(peer) == client.stream.socket.getsockname()
        assert (macs is not None) == mac
        assert door.admission.refused == 0
        wait_until(lambda: num_handshakes() == 0)


def test_a_client_with_another_token_is_counted_and_closed(tls: Tls | None) -> None:
    with Door(tls) as door:
        for _ in range(2):
            with pytest.raises(RefusedError):
                connect(door.address, bytes(32), tls)
        wait_until(lambda: door.admission.refused == 2)
        with connect(door.address, TOKEN, tls):
            wait_until(lambda: len(door.admitted) == 1)
        assert door.admission.refused == 2


def test_a_client_that_hangs_up_is_refused(tls: Tls | None) -> None:
    with Door(tls) as door:
        socket.create_connection(split_address(door.address), SECONDS).close()
        wait_until(lambda: door.admission.refused == 1)
        assert door.admitted == []


def test_accepting_does_not_wait_for_a_client() -> None:
    listening = Admission("127.0.0.1", 0, TOKEN, None, lambda *_: None)
    began = time.monotonic()
    listening.accept()
    assert time.monotonic() - began < 1
    assert num_handshakes() == 0
    listening.close()


def test_closing_breaks_off_handshakes_under_way(tls: Tls | None) -> None:
    """Long before their deadline, and nothing of them is left."""
    with Door(tls) as door:
        address = split_address(door.address)
        silent = [socket.create_connection(address, SECONDS) for _ in range(3)]
        wait_until(lambda: num_handshakes() == 3)
        began = time.monotonic()
        door.close()
        assert time.monotonic() - began < handshake.HANDSHAKE_SECONDS / 2
        assert num_handshakes() == 0
        assert door.admission.refused == 3
        with pytest.raises(WireError):
            connect(door.address, TOKEN, tls)
        for each in silent:
            each.close()


def test_too_few_threads_is_an_error_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server waits and tries again; the client sees an end."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    listening = Admission("127.0.0.1", 0, TOKEN, None, lambda *_: None)
    with socket.create_connection(split_address(listening.address), SECONDS) as client:
        monkeypatch.setattr(threading.Thread, "start", start)
        with pytest.raises(OSError, match="can't start new thread"):
            wait_until(listening.accept)
        assert client.recv(1) == b""
    listening.close()


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_does_not_exist_is_an_error_of_configuration(port: int) -> None:
    with pytest.raises(ConfigError, match=rf"cannot listen on 127\.0\.0\.1:{port}: a port is a number from 0 to 65535"):
        Admission("127.0.0.1", port, TOKEN, None, lambda *_: None)


def dial(address: str, source: str = "127.0.0.1") -> socket.socket:
    """A client that has been greeted and says nothing."""
    host, port = address.split(":")
    silent = socket.create_connection((host, int(port)), SECONDS, source_address=(source, 0))
    assert read_exactly(silent, len(MAGIC)) == MAGIC
    return silent


def test_clients_that_say_nothing_do_not_keep_others_out(tls: Tls | None) -> None:
    """Nobody waits for their deadline: the oldest of them goes for each newcomer."""
    with serving(Echo(), tls) as server:
        address = split_address(server.address)
        silent = [socket.create_connection(address, SECONDS) for _ in range(66)]
        wait_until(lambda: server.refused == 66 - admission.NUM_HANDSHAKES)
        began = time.monotonic()
        with joined(server, tls) as connection:
            assert is_served(connection)
            assert time.monotonic() - began < handshake.HANDSHAKE_SECONDS / 2
        # The thread of the one that went counts it, maybe after the newcomer was served.
        wait_until(lambda: server.refused == 67 - admission.NUM_HANDSHAKES)
        for each in silent:
            each.close()
        wait_until(lambda: server.refused == 66)
        wait_until(lambda: not any(thread.name == "paceline-handshake" for thread in threading.enumerate()))


@needs_linux
def test_the_oldest_of_the_host_with_most_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "NUM_HANDSHAKES", 4)
    with serving(Echo()) as server, contextlib.ExitStack() as stack:
        sources = ["127.0.0.9", "127.0.0.2", "127.0.0.2", "127.0.0.9", "127.0.0.2"]
        nine, two, *_ = [stack.enter_context(dial(server.address, source)) for source in sources]
        assert not is_quiet(nine)  # as many as the other, and older
        assert is_quiet(two)
        stack.enter_context(dial(server.address, "127.0.0.7"))
        assert not is_quiet(two)


def is_quiet(silent: socket.socket) -> bool:
    """Whether a server waits for this client. If not, it has reset the connection."""
    silent.settimeout(0.2)
    try:
        while silent.recv(100):
            pass
        raise AssertionError("a proper end, which means a refusal")
    except TimeoutError:
        return True
    except ConnectionResetError:
        return False


@pytest.mark.parametrize("attack", ["idle", "leaving", "wrong"])
def test_clients_of_the_run_connect_beside_200_hostile_ones_per_second(attack: str) -> None:
    """From the same machine, with and without ever saying something."""
    with serving(Echo()) as server, harassed(server.address, attack=attack):
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            began = time.monotonic()
            with joined(server) as connection:
                assert is_served(connection)
            assert time.monotonic() - began < 5.0
            time.sleep(0.02)
        wait_until(lambda: server.refused > 100)
