"""Somebody between client and server lets the handshake pass, and then alters what is sent: it is not accepted."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from paceline.errors import ConfigError
from paceline.wire import macs
from paceline.wire.connection import Connection, connect
from paceline.wire.frames import HEADER, BadFrameError, Kind, LostConnectionError, RefusedError
from paceline.wire.handshake import MAGIC
from paceline.wire.macs import MAC_BYTES, AlteredFrameError, Mac
from paceline.wire.server import Server
from paceline.wire.streams import split_address
from tests.wire.serving import SECONDS, TOKEN, Echo, is_served, serving, wait_until

BODY = bytes(range(200))
COUNT = 2
FRAME_BYTES = HEADER.size + len(BODY)

# What becomes of the frames of one direction.
Alter = Callable[[list[bytes]], list[bytes]]


def flipped(frame: bytes, at: int) -> bytes:
    return frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]


ALTERATIONS: dict[str, Alter] = {
    "a bit of the body": lambda frames: [flipped(frames[0], HEADER.size + 7), *frames[1:]],
    "the last bit": lambda frames: [flipped(frames[0], len(frames[0]) - 1), *frames[1:]],
    "the flags": lambda frames: [flipped(frames[0], 4), *frames[1:]],
    "the kind": lambda frames: [frames[0][:3] + bytes([Kind.CHUNK]) + frames[0][4:], *frames[1:]],
    "left out": lambda frames: frames[1:],
    "repeated": lambda frames: [frames[0], frames[0], *frames[1:]],
    "swapped": lambda frames: [frames[1], frames[0]],
}


def frames_of(data: bytes, mac: bool) -> list[bytes]:
    size = FRAME_BYTES + (MAC_BYTES if mac else 0)
    if len(data) < size * COUNT:
        raise ConnectionError("the other side has hung up")
    return [data[start : start + size] for start in range(0, len(data), size)]


def read_exactly(there: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length and (piece := there.recv(length - len(data))):
        data += piece
    return data


@contextlib.contextmanager
def relay(address: str, mac: bool, to_server: Alter = list, to_client: Alter = list) -> Iterator[str]:
    """The address of a relay to a server: the handshake passes, then two frames each way, altered."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pass_on() -> None:
            with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
                client = stack.enter_context(listener.accept()[0])
                server = stack.enter_context(socket.create_connection(split_address(address), SECONDS))
                client.settimeout(SECONDS)
                for there, here, length in ((server, client, len(MAGIC) + 32), (client, server, 64),
                                                (server, client, 32)):  # fmt: skip
                    here.sendall(read_exactly(there, length))
                for there, here, alter in ((client, server, to_server), (server, client, to_client)):
                    size = COUNT * (FRAME_BYTES + (MAC_BYTES if mac else 0))
                    here.sendall(b"".join(alter(frames_of(read_exactly(there, size), mac))))
                client.recv(1)

        thread = threading.Thread(target=pass_on)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(SECONDS)
        assert not thread.is_alive()


def send_two(connection: Connection) -> None:
    for flags in (2, 3):
        connection.send(Kind.STEP, flags, BODY[:50], BODY[50:])


def receive_two(connection: Connection) -> list[tuple[Kind, int, bytes]]:
    frames = (connection.receive(SECONDS) for _ in range(2))
    return [(frame.kind, frame.flags, frame.body.tobytes()) for frame in frames]


SENT = [(Kind.STEP, flags, BODY) for flags in (2, 3)]


@contextlib.contextmanager
def relayed(server: Server, mac: bool = True, **alterations: Alter) -> Iterator[Connection]:
    """A connection through a relay."""
    with relay(server.address, mac, **alterations) as address, connect(address, TOKEN, None, mac=mac) as connection:
        send_two(connection)
        yield connection


@pytest.mark.parametrize("mac", [True, False])
def test_a_relay_that_alters_nothing_is_a_cable(mac: bool) -> None:
    with serving(Echo(), mac=mac) as server, relayed(server, mac) as connection:
        assert receive_two(connection) == SENT


def test_without_macs_nobody_would_know() -> None:
    with serving(Echo(), mac=False) as server, relayed(server, False, to_server=ALTERATIONS["the flags"]) as connection:
        assert receive_two(connection) != SENT


@pytest.mark.parametrize("what", ALTERATIONS)
def test_a_server_accepts_nothing_that_was_altered(what: str) -> None:
    echo = Echo()
    with serving(echo, mac=True) as server, joined(server) as other:
        with relayed(server, to_server=ALTERATIONS[what]) as connection, pytest.raises(LostConnectionError):
            receive_two(connection)
        wait_until(lambda: len(echo.gone) == 1)
        assert echo.num_received == (what == "repeated")
        assert server.refused == 1
        assert is_served(other)


@pytest.mark.parametrize("what", ALTERATIONS)
def test_a_client_accepts_nothing_that_was_altered(what: str) -> None:
    with serving(Echo(), mac=True) as server, relayed(server, to_client=ALTERATIONS[what]) as connection:
        with pytest.raises(AlteredFrameError, match="altered in transit") as caught:
            receive_two(connection)
        assert connection.peer in caught.value.message


def test_frames_of_one_direction_are_worth_nothing_in_the_other() -> None:
    kept: list[bytes] = []

    def keep(frames: list[bytes]) -> list[bytes]:
        kept.extend(frames)
        return frames

    with (
        serving(Echo(), mac=True) as server,
        relayed(server, to_server=keep, to_client=lambda _: kept) as connection,
        pytest.raises(AlteredFrameError),
    ):
        receive_two(connection)


@pytest.mark.parametrize("mac", [True, False])
def test_nobody_is_talked_out_of_macs(mac: bool) -> None:
    with serving(Echo(), mac=mac) as server, pytest.raises(RefusedError):
        connect(server.address, TOKEN, None, mac=not mac)


def test_a_mac_depends_on_the_key_and_not_on_the_parts() -> None:
    whole, parts, other = Mac(b"k" * 32), Mac(b"k" * 32), Mac(b"l" * 32)
    first = whole.next([BODY], "peer")
    assert first == parts.next([BODY[:3], b"", BODY[3:]], "peer")
    assert first != other.next([BODY], "peer")
    assert whole.next([BODY], "peer") == parts.next([BODY], "peer") != first


def test_without_cryptography_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cryptography.exceptions", "cryptography.hazmat.primitives.ciphers.aead"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match="is not installed") as caught:
        Server("127.0.0.1", 0, TOKEN, None, mac=True)
    assert caught.value.hint == "pip install 'paceline[tls]'"
    Server("127.0.0.1", 0, TOKEN, None).close()


def test_a_frame_that_is_too_long_for_a_mac_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Echo(), mac=True) as server, joined(server) as connection:
        monkeypatch.setattr(macs, "MOST_BYTES", 1000)
        with pytest.raises(BadFrameError, match="too long for a MAC"):
            connection.send(Kind.STEP, 0, bytes(2000))
        assert is_served(connection)


def joined(server: Server) -> Connection:
    return connect(server.address, TOKEN, None, mac=True)
