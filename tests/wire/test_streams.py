"""Bytes in, frames out: whatever pieces they come in, plain or TLS, with MACs or without."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from paceline.errors import ConfigError
from paceline.wire import streams
from paceline.wire.frames import (
    HEADER,
    MAGIC,
    VERSION,
    BadFrameError,
    Frame,
    Kind,
    LostConnectionError,
    ResetError,
    SilentPeerError,
)
from paceline.wire.macs import Mac, Macs
from paceline.wire.streams import Incoming, Stream, TlsStream, join_address, split_address, stream_of, wire_error
from paceline.wire.tls import Tls, client_context, server_context
from tests.wire.serving import SECONDS, wait_until


@contextlib.contextmanager
def plain_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname(), SECONDS)
        far, _ = listener.accept()
    far.settimeout(SECONDS)
    with near, far:
        yield near, far


@contextlib.contextmanager
def stream_pair(tls: Tls | None, macs: tuple[Macs, Macs] | None = None) -> Iterator[tuple[Stream, Stream]]:
    """Two streams that are connected."""
    with plain_pair() as (near, far):
        if tls is not None:
            sides: list[socket.socket] = []
            answering = threading.Thread(
                target=lambda: sides.append(server_context(tls).wrap_socket(far, server_side=True))
            )
            answering.start()
            near = client_context(tls).wrap_socket(near)
            answering.join(SECONDS)
            (far,) = sides
        here, there = macs or (None, None)
        one, other = stream_of(near, "here", here), stream_of(far, "there", there)
        try:
            yield one, other
        finally:
            one.close()
            other.close()


def send(stream: Stream, kind: Kind, flags: int, *parts: bytes | np.ndarray) -> None:
    left = stream.start(*stream.next_frame(kind, flags, parts))
    while left:
        stream.write(left)


def receive(incoming: Incoming) -> Frame:
    found: list[Frame] = []

    def arrived() -> bool:
        frame = incoming.next_frame()
        if frame is not None:
            found.append(frame)
        return bool(found)

    wait_until(arrived)
    return found[0]


def frame_of(body: bytes, kind: Kind = Kind.CHUNK, flags: int = 0) -> bytes:
    return HEADER.pack(MAGIC, VERSION, kind, flags, len(body)) + body


class TestAddresses:
    @pytest.mark.parametrize("address", ["", "host", "host:", ":5", "::1:5", "host:http", "host:70000", "[]:5", "h:-1"])
    def test_text_that_is_not_an_address_is_refused(self, address: str) -> None:
        with pytest.raises(ConfigError, match="is not an address") as caught:
            split_address(address)
        assert "host:port" in caught.value.hint

    @pytest.mark.parametrize(("host", "port"), [("node7", 4000), ("10.0.0.1", 0), ("::1", 65535), ("fe80::2", 5)])
    def test_an_address_is_split_as_it_was_joined(self, host: str, port: int) -> None:
        assert split_address(join_address(host, port)) == (host, port)


class TestErrors:
    @pytest.mark.parametrize(
        ("error", "kind", "says"),
        [
            (TimeoutError(errno.ETIMEDOUT, "timed out"), SilentPeerError, "node7:1 accepted no data for 30 s"),
            (ConnectionResetError(errno.ECONNRESET, "reset by peer"), ResetError, "lost: reset by peer"),
            (BrokenPipeError(errno.EPIPE, "Broken pipe"), ResetError, "node7:1 was lost: Broken pipe"),
            (OSError(errno.EHOSTUNREACH, "No route to host"), LostConnectionError, "lost: No route to host"),
            (ConnectionAbortedError(), LostConnectionError, "lost: ConnectionAbortedError"),
        ],
    )
    def test_an_error_of_the_system_says_what_it_means_for_the_run(self, error: OSError, kind: type, says: str) -> None:
        found = wire_error("node7:1", error)
        assert type(found) is kind
        assert says in found.message
        assert found.hint

    def test_a_peer_that_closes_is_lost_and_one_that_breaks_off_is_reset(self) -> None:
        for linger, kind in ((False, LostConnectionError), (True, ResetError)):
            with plain_pair() as (near, far):
                if linger:
                    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                far.close()
                stream, room = stream_of(near, "node7:1"), memoryview(bytearray(4))
                with pytest.raises(LostConnectionError, match="node7:1") as caught:
                    wait_until(partial(stream.read_into, room))
                assert type(caught.value) is kind


class TestStream:
    def test_tls_sockets_have_streams_of_their_own(self, tls: Tls | None) -> None:
        with stream_pair(tls) as pair:
            assert [type(stream) for stream in pair] == [TlsStream if tls else Stream] * 2

    def test_nothing_there_is_no_bytes_and_no_wait(self, tls: Tls | None) -> None:
        with stream_pair(tls) as (one, _):
            assert one.read_into(memoryview(bytearray(10))) == 0
            assert one.bytes_received == 0
            assert Incoming(one).next_frame() is None

    def test_a_full_socket_takes_the_rest_later(self, tls: Tls | None) -> None:
        """And what was sent is what comes, in order; both sides count it."""
        body = np.random.default_rng(1).integers(0, 256, 20 << 20, dtype=np.uint8)
        with stream_pair(tls) as (one, other):
            buffers, num_bytes = one.next_frame(Kind.CHUNK, 3, (body[:1], body[1:]))
            left = one.start(buffers, num_bytes)
            assert 0 < sum(map(len, left)) < num_bytes
            assert one.bytes_sent == num_bytes - sum(map(len, left))
            incoming = Incoming(other)
            frame = None
            while frame is None:
                if left:
                    one.write(left)
                frame = incoming.next_frame()
            assert (frame.kind, frame.flags) == (Kind.CHUNK, 3)
            assert np.array_equal(frame.body, body)
            assert one.bytes_sent == other.bytes_received == num_bytes == HEADER.size + len(body)

    def test_more_parts_than_the_system_takes_at_once(self, tls: Tls | None) -> None:
        parts = [bytes([i % 251]) * (i % 3) for i in range(3 * streams.IOV_MAX)]
        with stream_pair(tls) as (one, other):
            send(one, Kind.MESSAGE, 0, *parts)
            assert receive(Incoming(other)).body.tobytes() == b"".join(parts)

    def test_closing_twice_is_closing_once(self, tls: Tls | None) -> None:
        with stream_pair(tls) as (one, _):
            one.close()
            one.close()
            with pytest.raises(LostConnectionError):
                one.read_into(memoryview(bytearray(1)))


class TestIncoming:
    @settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(bodies=st.lists(st.binary(max_size=300), min_size=1, max_size=6), data=st.data())
    def test_frames_do_not_depend_on_the_pieces_they_come_in(self, bodies: list[bytes], data: st.DataObject) -> None:
        sent = b"".join(frame_of(body, flags=i) for i, body in enumerate(bodies))
        with plain_pair() as (near, far):
            incoming, found, at = Incoming(stream_of(near, "far")), list[tuple[int, bytes]](), 0

            def take() -> int:
                while (frame := incoming.next_frame()) is not None:
                    found.append((frame.flags, frame.body.tobytes()))
                return len(found)

            while at < len(sent):
                size = data.draw(st.integers(1, len(sent) - at))
                far.sendall(sent[at : at + size])
                at += size
                take()
            wait_until(lambda: take() == len(bodies))
            assert found == list(enumerate(bodies))

    def test_frames_that_came_together_are_told_of(self, tls: Tls | None) -> None:
        """Waiting for the socket would not see the second one."""
        with stream_pair(tls) as (one, other):
            incoming = Incoming(other)
            views = [memoryview(frame_of(b"first") + frame_of(b"second"))]
            while views:
                one.write(views)
            assert receive(incoming).body.tobytes() == b"first"
            assert incoming.has_more
            frame = incoming.next_frame()
            assert frame is not None
            assert frame.body.tobytes() == b"second"
            assert not incoming.has_more

    def test_a_large_frame_lets_others_have_a_turn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(streams, "TURN_BYTES", 1_000)
        monkeypatch.setattr(streams, "FIRST_BYTES", 200)
        monkeypatch.setattr(streams, "AHEAD_BYTES", 200)
        with plain_pair() as (near, far):
            incoming = Incoming(stream_of(near, "far"))
            far.sendall(frame_of(bytes(10_000)))
            wait_until(lambda: len(near.recv(20_000, socket.MSG_PEEK)) == HEADER.size + 10_000)
            num_turns = 1
            while incoming.next_frame() is None:
                num_turns += 1
            assert 4 <= num_turns <= 11

    @pytest.mark.parametrize("length", [100 << 20, 4 << 30])
    def test_memory_follows_what_came(self, length: int) -> None:
        with plain_pair() as (near, far):
            incoming = Incoming(stream_of(near, "far"))
            far.sendall(HEADER.pack(MAGIC, VERSION, Kind.STEP, 0, length) + bytes(100))
            wait_until(lambda: incoming.next_frame() is None and incoming._filled == HEADER.size + 100)
            assert len(incoming._buffer) <= streams.AHEAD_BYTES + HEADER.size + 100

    @example(data=b"pl")
    @given(data=st.binary(min_size=HEADER.size, max_size=40).filter(lambda data: data[:2] != MAGIC))
    @settings(max_examples=20)
    def test_bytes_that_are_not_a_frame_are_refused(self, data: bytes) -> None:
        with plain_pair() as (near, far):
            incoming = Incoming(stream_of(near, "far"))
            far.sendall(data.ljust(HEADER.size, b"\xff"))
            with pytest.raises(BadFrameError, match="far sent"):
                wait_until(lambda: incoming.next_frame() is not None)

    def test_a_mac_is_taken_off_and_a_changed_bit_is_refused(self) -> None:
        def macs() -> tuple[Macs, Macs]:
            return Macs(Mac(bytes(32)), Mac(b"\1" * 32)), Macs(Mac(b"\1" * 32), Mac(bytes(32)))

        with stream_pair(None, macs()) as (one, other):
            incoming = Incoming(other)
            for body in (b"one", b"", b"three"):
                send(one, Kind.MESSAGE, 0, body)
                assert receive(incoming).body.tobytes() == body
        with stream_pair(None, macs()) as (one, other):
            buffers, _ = one.next_frame(Kind.MESSAGE, 0, (b"body",))
            whole = bytearray(b"".join(bytes(buffer) for buffer in buffers))
            whole[HEADER.size] ^= 1
            one.write([memoryview(whole)])
            with pytest.raises(BadFrameError):
                receive(Incoming(other))
