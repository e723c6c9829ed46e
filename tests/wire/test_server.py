"""One thread serves many peers, and what one of them does wrong is its own affair."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from paceline.errors import ConfigError
from paceline.wire import server as server_module
from paceline.wire import streams
from paceline.wire.connection import Connection, connect
from paceline.wire.frames import HEADER, MAGIC, VERSION, BadFrameError, Frame, Kind, LostConnectionError
from paceline.wire.server import Peer, Server
from paceline.wire.tls import Tls
from tests.skips import needs_ipv6
from tests.wire.serving import SECONDS, TOKEN, Echo, is_served, joined, send_many, serving, wait_until


def dial(server: Server) -> socket.socket:
    host, port = server.address.split(":")
    return socket.create_connection((host, int(port)), SECONDS)


def say(connection: Connection, data: bytes) -> None:
    """Send bytes that need not be a frame."""
    views = [memoryview(data)]
    while views:
        connection.stream.write(views)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200))
@example(data=b"GET / HTTP/1.1\r\n\r\n" * 8)
def test_random_bytes_before_the_handshake_close_that_connection_only(tls: Tls | None, data: bytes) -> None:
    with serving(Echo(), tls) as server, joined(server, tls) as other:
        with dial(server) as stranger, contextlib.suppress(OSError):
            stranger.sendall(data)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(4096):
                pass
        wait_until(lambda: server.refused == 1)
        assert is_served(other)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(min_size=16, max_size=200).filter(lambda data: data[:2] != b"pl"), kept=st.integers(0, 3))
def test_random_bytes_after_the_handshake_close_that_connection_only(tls: Tls | None, data: bytes, kept: int) -> None:
    echo = Echo()
    with serving(echo, tls) as server, joined(server, tls) as other, joined(server, tls) as wild:
        assert is_served(wild)
        say(wild, HEADER.pack(b"pl", 1, 1, 0, 3)[:kept] + data if kept < 2 else data)
        with pytest.raises(LostConnectionError):
            wild.receive(SECONDS)
        wait_until(lambda: len(echo.gone) == 1)
        assert is_served(other)


@pytest.mark.parametrize(
    "header",
    [
        HEADER.pack(b"pl", 1, 1, 0, (64 << 20) + 1),
        HEADER.pack(b"pl", 1, 2, 0, 2**64 - 1),
        HEADER.pack(b"pl", 1, 0, 0, 0),
        HEADER.pack(b"pl", 1, 6, 0, 0),
        HEADER.pack(b"pl", 2, 1, 0, 0),
        HEADER.pack(b"PL", 1, 1, 0, 0),
    ],
)
def test_a_bad_header_closes_its_connection_at_once(header: bytes) -> None:
    echo = Echo()
    with serving(echo) as server, joined(server) as other, joined(server) as bad:
        say(bad, header)
        with pytest.raises(LostConnectionError):
            bad.receive(SECONDS)
        assert is_served(other)
        assert max(len(peer.incoming._buffer) for peer in [*server.peers, *echo.gone]) == streams.FIRST_BYTES


def test_a_frame_cut_short_is_not_received(tls: Tls | None) -> None:
    echo = Echo()
    with serving(echo, tls) as server, joined(server, tls) as other:
        with joined(server, tls) as cut:
            say(cut, HEADER.pack(b"pl", 1, 2, 0, 1_000) + bytes(999))
        wait_until(lambda: len(echo.gone) == 1)
        assert echo.num_received == 0
        assert is_served(other)


def test_a_service_that_rejects_a_frame_closes_that_peer_only() -> None:
    class Picky(Echo):
        def received(self, peer: Peer, frame: Frame) -> None:
            if frame.kind is Kind.CHUNK:
                raise BadFrameError(f"{peer.address} sent a CHUNK out of place")
            super().received(peer, frame)

    with serving(Picky()) as server, joined(server) as other, joined(server) as bad:
        bad.send(Kind.CHUNK, 0)
        with pytest.raises(LostConnectionError):
            bad.receive(SECONDS)
        assert is_served(other)


def test_what_else_a_service_raises_ends_serve() -> None:
    class Failing(Echo):
        def received(self, peer: Peer, frame: Frame) -> None:
            raise ZeroDivisionError

    server = Server("127.0.0.1", 0, TOKEN, None)
    connecting = threading.Thread(target=knock, args=(server,))
    connecting.start()
    with pytest.raises(ZeroDivisionError):
        server.serve(Failing(), 1.0)
    server.close()
    connecting.join(SECONDS)


def knock(server: Server) -> None:
    with joined(server) as connection:
        connection.send(Kind.MESSAGE, 0)


def test_many_peers_are_served(tls: Tls | None) -> None:
    echo = Echo()
    with serving(echo, tls) as server, contextlib.ExitStack() as stack:
        peers = [stack.enter_context(joined(server, tls)) for _ in range(40)]
        for turn in range(3):
            for i, peer in enumerate(peers):
                peer.send(Kind.STEP, i, np.full(1_000 * turn, i, np.uint8))
            for i, peer in enumerate(peers):
                frame = peer.receive(SECONDS)
                assert (frame.flags, len(frame.body)) == (i, 1_000 * turn)
                assert (frame.body == i).all()
        stack.close()
        wait_until(lambda: len(echo.gone) == 40)
        streams_gone = [peer.stream for peer in echo.gone]
        assert sum(one.bytes_received for one in streams_gone) == sum(one.bytes_sent for one in streams_gone)


def test_one_peer_with_many_frames_does_not_keep_others_waiting(tls: Tls | None) -> None:
    """While a peer's thousand frames wait in the buffer, another's one is answered after few of them."""
    order: list[int] = []

    class Noting(Echo):
        def received(self, peer: Peer, frame: Frame) -> None:
            if frame.kind is Kind.HELD:
                hold.wait(SECONDS)
            order.append(frame.flags)

    hold = threading.Event()
    noting = Noting()
    with serving(noting, tls) as server, joined(server, tls) as many, joined(server, tls) as one:
        wait_until(lambda: len(server.peers) == 2)
        many.send(Kind.HELD, 0)
        for _ in range(1_000):
            many.send(Kind.MESSAGE, 1, b"x")
        one.send(Kind.MESSAGE, 2)
        hold.set()
        wait_until(lambda: len(order) == 1_002)
        assert order.index(2) < 10


def test_arrival_is_when_the_loop_woke_up() -> None:
    waited: list[float] = []

    class Slow(Echo):
        def received(self, peer: Peer, frame: Frame) -> None:
            waited.append((time.perf_counter_ns() - peer.arrived) / 1e9)
            gate.wait(SECONDS)
            time.sleep(0.02)

    gate = threading.Event()
    slow = Slow()
    with serving(slow) as server, joined(server) as first, joined(server) as second, joined(server) as third:
        wait_until(lambda: len(server.peers) == 3)
        first.send(Kind.MESSAGE, 0)
        wait_until(lambda: len(waited) == 1)
        # These two are ready when the loop wakes up next: the later one waits for the earlier one.
        second.send(Kind.MESSAGE, 0)
        third.send(Kind.MESSAGE, 0)
        time.sleep(0.02)
        gate.set()
        wait_until(lambda: len(waited) == 3)
        assert waited[2] >= 0.02


def test_calls_from_other_threads_run_on_the_loops_thread_in_order() -> None:
    names: list[str] = []
    numbers: list[tuple[int, int]] = []

    def call(thread: int) -> None:
        for i in range(100):
            server.call_soon(lambda i=i: numbers.append((thread, i)))  # type: ignore[misc]

    with serving(Echo(), tick_seconds=60) as server:
        server.call_soon(lambda: names.append(threading.current_thread().name))
        callers = [threading.Thread(target=call, args=(thread,)) for thread in range(3)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(SECONDS)
        wait_until(lambda: len(numbers) == 300)
        for thread in range(3):
            assert [i for by, i in numbers if by == thread] == list(range(100))
    assert names == ["serve"]


def test_a_call_may_send_to_and_close_peers() -> None:
    echo = Echo()
    with serving(echo, tick_seconds=60) as server, joined(server) as connection:
        wait_until(lambda: len(server.peers) == 1)

        def part() -> None:
            (peer,) = server.peers
            peer.send(Kind.MESSAGE, 0, b"bye")
            peer.close()
            peer.close()
            peer.send(Kind.MESSAGE, 0, b"too late")
            assert not echo.gone

        server.call_soon(part)
        assert connection.receive(SECONDS).body.tobytes() == b"bye"
        with pytest.raises(LostConnectionError):
            connection.receive(SECONDS)
        wait_until(lambda: len(echo.gone) == 1)


def test_ticks_come_about_as_often_as_asked() -> None:
    echo = Echo()
    with serving(echo, tick_seconds=0.01) as server, joined(server) as connection:
        began, before = time.monotonic(), echo.num_ticks
        while echo.num_ticks < before + 10:
            assert is_served(connection), "a server that is busy does not tick"
            assert time.monotonic() < began + SECONDS
        assert time.monotonic() - began > 0.08


def test_a_peer_that_takes_nothing_is_closed(monkeypatch: pytest.MonkeyPatch, tls: Tls | None) -> None:
    monkeypatch.setattr(server_module, "STALL_SECONDS", 0.1)
    monkeypatch.setattr(server_module, "SWEEP_SECONDS", 0.02)
    echo = Echo()
    with serving(echo, tls) as server, joined(server, tls) as other, joined(server, tls) as deaf:
        with pytest.raises(LostConnectionError):
            send_many(deaf, 4 << 20)
        wait_until(lambda: len(echo.gone) == 1)
        assert is_served(other)


@pytest.mark.parametrize("kind", [Kind.CHUNK, Kind.VALUES])
def test_a_peer_that_reads_nothing_is_closed_before_its_queue_is_large(kind: Kind, tls: Tls | None) -> None:
    """However slowly time passes: it asks for more than it takes."""
    largest = 0

    class Measuring(Echo):
        def received(self, peer: Peer, frame: Frame) -> None:
            nonlocal largest
            super().received(peer, frame)
            largest = max(largest, sum(len(view) for view in peer._queue))

    measuring = Measuring()
    with serving(measuring, tls) as server, joined(server, tls) as other, joined(server, tls) as deaf:
        with pytest.raises(LostConnectionError):
            send_many(deaf, 1 << 20, kind)
        wait_until(lambda: len(measuring.gone) == 1)
        assert server_module.QUEUE_BYTES // 2 < largest <= server_module.QUEUE_BYTES
        assert not measuring.gone[0]._queue
        assert is_served(other)


def test_two_large_replies_may_wait_however_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that pulls the whole model has two batches in flight."""
    monkeypatch.setattr(server_module, "QUEUE_BYTES", 1 << 20)
    reply = np.zeros(24 << 20, np.uint8)

    class Replying(Echo):
        def received(self, peer: Peer, frame: Frame) -> None:
            self.num_received += 1
            peer.send(Kind.VALUES, 0, reply)

    replying = Replying()
    with serving(replying) as server, joined(server) as connection:
        for _ in range(2):
            connection.send(Kind.STEP, 0)
        wait_until(lambda: replying.num_received == 2)
        for _ in range(2):
            assert len(connection.receive(SECONDS).body) == len(reply)
        for _ in range(3):
            connection.send(Kind.STEP, 0)
        wait_until(lambda: len(replying.gone) == 1)


def test_one_reply_of_another_kind_may_wait_however_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "QUEUE_BYTES", 1 << 20)
    reply = np.zeros(24 << 20, np.uint8)

    class Replying(Echo):
        def received(self, peer: Peer, frame: Frame) -> None:
            peer.send(Kind.CHUNK, 0, reply)

    replying = Replying()
    with serving(replying) as server, joined(server) as connection:
        connection.send(Kind.STEP, 0)
        assert len(connection.receive(SECONDS).body) == len(reply)
        for _ in range(2):
            connection.send(Kind.STEP, 0)
        wait_until(lambda: len(replying.gone) == 1)


def test_a_port_in_use_is_an_error_of_configuration() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use") as caught:
            Server("127.0.0.1", port, TOKEN, None)
        assert "port 0" in caught.value.hint


@pytest.mark.parametrize(("host", "port"), [("192.0.2.1", 0), ("no such host", 0), ("127.0.0.1", 70_000)])
def test_where_it_cannot_listen_is_an_error_of_configuration(host: str, port: int) -> None:
    with pytest.raises(ConfigError, match="cannot listen on"):
        Server(host, port, TOKEN, None)


@needs_ipv6
def test_ipv6_addresses_are_understood() -> None:
    server = Server("::1", 0, TOKEN, None)
    assert server.address.startswith("[::1]:")
    thread = threading.Thread(target=server.serve, args=(Echo(), 1.0))
    thread.start()
    with connect(server.address, TOKEN, None) as connection:
        assert is_served(connection)
    server.stop()
    thread.join(SECONDS)
    server.close()


def test_a_server_that_was_stopped_can_serve_again_and_closing_breaks_off_handshakes() -> None:
    server = Server("127.0.0.1", 0, TOKEN, None)
    server.stop()
    server.serve(Echo(), 1.0)
    thread = threading.Thread(target=server.serve, args=(Echo(), 1.0))
    thread.start()
    with dial(server) as silent:
        assert silent.recv(4)
        with joined(server) as connection:
            assert is_served(connection)
            server.stop()
            thread.join(SECONDS)
            begin = time.monotonic()
            server.close()
            assert time.monotonic() - begin < 2
            with pytest.raises(LostConnectionError):
                connection.receive(SECONDS)
    server.close()
    server.stop()
    server.call_soon(lambda: None)


def test_a_peer_that_never_says_anything_is_closed_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows the token, but half a frame is not a frame."""
    monkeypatch.setattr(server_module, "FIRST_FRAME_SECONDS", 0.1)
    with serving(echo := Echo()) as server, connect(server.address, TOKEN, None) as known:
        assert is_served(known)
        with connect(server.address, TOKEN, None) as silent:
            say(silent, HEADER.pack(MAGIC, VERSION, Kind.MESSAGE, 0, 10)[:7])
            with pytest.raises(LostConnectionError):
                silent.receive(SECONDS)
        wait_until(lambda: len(echo.gone) == 1)
        assert server.refused == 1
        assert is_served(known)
