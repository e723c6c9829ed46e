"""Frames arrive whole and in order, and a peer that is lost or silent is noticed."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from paceline.wire import connection as connection_module
from paceline.wire import streams
from paceline.wire.connection import connect
from paceline.wire.frames import CAPS, HEADER, BadFrameError, Kind, LostConnectionError, SilentPeerError
from paceline.wire.streams import Stream
from paceline.wire.tls import Tls
from tests.ports import free_ports
from tests.skips import needs_linux
from tests.wire.serving import SECONDS, TOKEN, Echo, bare_pair, is_served, joined, send_many, serving

FRAMES = st.lists(
    st.tuples(
        st.sampled_from(Kind),
        st.integers(0, 2**32 - 1),
        st.lists(st.one_of(st.integers(0, 40), st.integers(0, 200_000)), max_size=4),
    ),
    max_size=8,
)


def body_of(sizes: list[int], kind: Kind, seed: int) -> list[NDArray[np.uint8]]:
    rng = np.random.default_rng(seed)
    cap = CAPS[kind] // 4
    return [rng.integers(0, 256, min(size, cap), dtype=np.uint8) for size in sizes]


def header(kind: int, length: int) -> bytes:
    return HEADER.pack(b"pl", 1, kind, 0, length)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frames=FRAMES, ahead=st.booleans())
def test_any_frames_arrive_whole_and_in_order_both_ways(
    tls: Tls | None, frames: list[tuple[Kind, int, list[int]]], ahead: bool
) -> None:
    """Each in turn, or all sent before the first is received."""
    with serving(Echo(), tls) as server, joined(server, tls) as connection:
        sent = [(kind, flags, body_of(sizes, kind, i)) for i, (kind, flags, sizes) in enumerate(frames)]
        received = []
        for kind, flags, parts in sent:
            connection.send(kind, flags, *parts)
            if not ahead:
                frame = connection.receive(SECONDS)
                received.append((frame.kind, frame.flags, frame.body.tobytes()))
        while len(received) < len(sent):
            frame = connection.receive(SECONDS)
            assert frame.body.ctypes.data % 16 == 0
            assert frame.body.flags.writeable
            received.append((frame.kind, frame.flags, frame.body.tobytes()))
        expected = [(kind, flags, b"".join(part.tobytes() for part in parts)) for kind, flags, parts in sent]
        assert received == expected
        total = sum(HEADER.size + len(body) for _, _, body in expected)
        assert connection.stream.bytes_sent == connection.stream.bytes_received == total


def test_arrays_of_any_type_and_many_parts_are_one_body() -> None:
    with serving(Echo()) as server, joined(server) as connection:
        arrays: list[NDArray[Any]] = [np.arange(3, dtype=np.float32), np.arange(2), np.empty(0, np.float32)] * 1_000
        connection.send(Kind.STEP, 0, b"", *arrays, bytearray(b"end"))
        assert connection.receive(SECONDS).body.tobytes() == b"".join(part.tobytes() for part in arrays) + b"end"


def test_a_body_that_comes_in_pieces_is_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the sizes of what one call receives, and however the buffer has to grow."""
    monkeypatch.setattr(streams, "AHEAD_BYTES", 50)
    body = bytes(range(256)) * 40
    for step in (1, 7, 16, 1_000, 10_000):
        with bare_pair() as (connection, far):
            data = (header(Kind.CHUNK, len(body)) + body) * 2 + header(Kind.HELD, 0)
            sender = threading.Thread(target=send_in_steps, args=(far, data, step))
            sender.start()
            for _ in range(2):
                assert connection.receive(SECONDS).body.tobytes() == body
            assert connection.receive(SECONDS).kind is Kind.HELD
            sender.join(SECONDS)


def send_in_steps(far: socket.socket, data: bytes, step: int) -> None:
    far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for start in range(0, len(data), step):
        far.sendall(data[start : start + step])


def test_silence_is_an_error_after_which_the_frame_continues() -> None:
    with bare_pair() as (connection, far):
        for piece in (b"", header(Kind.MESSAGE, 4)[:5], header(Kind.MESSAGE, 4)[5:] + b"ab"):
            far.sendall(piece)
            with pytest.raises(SilentPeerError) as caught:
                connection.receive(0.03)
            assert connection.peer in caught.value.message
        far.sendall(b"cd")
        assert connection.receive(SECONDS).body.tobytes() == b"abcd"


@pytest.mark.parametrize("length", [4, 200_000])
def test_a_trickle_is_not_silence(length: int) -> None:
    """Nor is one of which the reader is not woken up for each byte."""
    with bare_pair() as (connection, far):
        body = bytes(length)

        def trickle() -> None:
            data = header(Kind.CHUNK, length) + body
            for byte in data[:20]:
                far.sendall(bytes([byte]))
                time.sleep(0.02)
            far.sendall(data[20:])

        sender = threading.Thread(target=trickle)
        sender.start()
        begin = time.monotonic()
        assert connection.receive(0.25).body.tobytes() == body
        assert time.monotonic() - begin > 0.3
        sender.join(SECONDS)


@needs_linux
def test_nobody_is_woken_up_for_each_packet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow link brings a frame packet by packet: taking each in on its own would keep a core busy."""
    reads: list[int] = []
    read_into = Stream.read_into

    def counted(stream: Stream, room: memoryview) -> int:
        reads.append(read_into(stream, room))
        return reads[-1]

    monkeypatch.setattr(Stream, "read_into", counted)
    body = bytes(range(256)) * 1_000
    with bare_pair() as (connection, far):

        def slowly() -> None:
            data = header(Kind.CHUNK, len(body)) + body + header(Kind.HELD, 0)
            for start in range(0, len(data), 1_000):
                far.sendall(data[start : start + 1_000])
                time.sleep(0.0005)

        sender = threading.Thread(target=slowly)
        sender.start()
        assert connection.receive(SECONDS, spin_seconds=0.0003).body.tobytes() == body
        assert len(reads) < 60
        # And small ones are seen at once again.
        assert connection.receive(SECONDS).kind is Kind.HELD
        sender.join(SECONDS)


def test_spinning_is_told() -> None:
    with bare_pair() as (connection, far):
        far.sendall(header(Kind.HELD, 0))
        time.sleep(0.05)
        connection.receive(SECONDS, spin_seconds=0.05)
        assert connection.spinner.spun == 0
        began = time.thread_time_ns()
        with pytest.raises(SilentPeerError):
            connection.receive(0.01, spin_seconds=0.05)
        assert 0 < connection.spinner.spun <= time.thread_time_ns() - began


@pytest.mark.parametrize("said", [b"", b"p", header(Kind.STEP, 10), header(Kind.STEP, 10) + b"only"])
def test_a_peer_that_goes_away_is_lost(said: bytes) -> None:
    with bare_pair() as (connection, far):
        far.sendall(said)
        far.close()
        with pytest.raises(LostConnectionError) as caught:
            connection.receive(SECONDS)
        assert connection.peer in caught.value.message
        assert caught.value.hint


def test_a_reset_is_a_lost_connection_for_both_directions() -> None:
    with bare_pair() as (connection, far):
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        far.close()
        with pytest.raises(LostConnectionError):
            connection.receive(SECONDS)
        with pytest.raises(LostConnectionError):
            send_many(connection, 1)


@pytest.mark.parametrize("data", [b"HTTP/1.1 200 OK\r\n", header(77, 0), header(Kind.HELD, 1 << 40)])
def test_bad_frames_are_named(data: bytes) -> None:
    with bare_pair() as (connection, far):
        far.sendall(data)
        with pytest.raises(BadFrameError, match=connection.peer):
            connection.receive(SECONDS)


def test_memory_follows_what_came_not_what_was_announced() -> None:
    with bare_pair() as (connection, far):
        far.sendall(header(Kind.STEP, 4 << 30) + bytes(1_000))
        with pytest.raises(SilentPeerError):
            connection.receive(0.05)
        assert len(connection._incoming._buffer) <= (64 << 20) + 1_016


def test_a_peer_that_reads_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch, tls: Tls | None) -> None:
    monkeypatch.setattr(connection_module, "SEND_SECONDS", 0.1)

    class Deaf(Echo):
        def received(self, peer: object, frame: object) -> None:
            release.wait(SECONDS)

    release = threading.Event()
    with serving(Deaf(), tls) as server:
        with joined(server, tls) as connection:
            with pytest.raises(SilentPeerError, match=r"accepted no data for 0\.1 s"):
                send_many(connection, 4 << 20)
            # Half a frame went out: nothing may follow it.
            with pytest.raises(LostConnectionError):
                connection.send(Kind.MESSAGE, 0)
        release.set()


def test_a_big_frame_passes_a_slow_reader_whole(tls: Tls | None) -> None:
    big = np.random.default_rng(0).integers(0, 256, 64 << 20, dtype=np.uint8)
    with serving(Echo(), tls) as server, joined(server, tls) as connection, joined(server, tls) as other:
        connection.send(Kind.CHUNK, 3, big)
        for _ in range(20):
            assert is_served(other)
        frame = connection.receive(SECONDS)
        assert frame.flags == 3
        assert np.array_equal(frame.body, big)
        assert is_served(connection)


def test_frames_of_two_threads_never_mix(tls: Tls | None) -> None:
    with serving(Echo(), tls) as server, joined(server, tls) as connection:

        def beat() -> None:
            for _ in range(100):
                connection.send(Kind.MESSAGE, 1, b"beat" * 10)

        thread = threading.Thread(target=beat)
        thread.start()
        main, beats = 0, 0
        for i in range(50):
            connection.send(Kind.STEP, 2, np.full(100_000, i, np.uint8))
            while main <= i:
                frame = connection.receive(SECONDS)
                if frame.flags == 1:
                    assert frame.body.tobytes() == b"beat" * 10
                    beats += 1
                else:
                    assert (frame.body == i).all()
                    main += 1
        thread.join(SECONDS)
        while beats < 100:
            beats += connection.receive(SECONDS).flags == 1


def test_closing_wakes_up_who_receives(tls: Tls | None) -> None:
    with serving(Echo(), tls) as server:
        connection = joined(server, tls)
        closer = threading.Timer(0.05, connection.close)
        closer.start()
        with pytest.raises(LostConnectionError):
            connection.receive(SECONDS)
        closer.join(SECONDS)
        connection.close()
        assert connection.stream.socket.fileno() == -1
        with pytest.raises(LostConnectionError):
            connection.send(Kind.MESSAGE, 0)
        with pytest.raises(LostConnectionError):
            connection.receive(0)


def test_nobody_listening_is_a_lost_connection() -> None:
    address = f"127.0.0.1:{free_ports()}"
    with pytest.raises(LostConnectionError, match=address):
        connect(address, TOKEN, None)
