"""Probes of a real system: what was done shows, and what is missing is named."""

from __future__ import annotations

import contextlib
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from paceline.telemetry import probes
from paceline.telemetry.probes import ConnectionProber, CoreTimes, NodeProber, core_shares, growth
from paceline.telemetry.records import AnyRecord, ConnectionProbe, LeftOut, NodeProbe
from tests.skips import needs_linux

PATIENCE_SECONDS = 30.0
T = TypeVar("T")


def until(found: Callable[[], T | None]) -> T:
    """What `found` returns as soon as that is something; counters tick coarsely, and the machine may be busy."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if result := found():
            return result
        time.sleep(0.02)
    raise AssertionError("it never showed")


def left_out(records: list[AnyRecord]) -> dict[str, str]:
    return {record.name: record.reason for record in records if isinstance(record, LeftOut)}


def take_probe(prober: NodeProber) -> NodeProbe:
    (probe,) = prober.take()
    assert isinstance(probe, NodeProbe)
    return probe


class TestNode:
    def test_the_first_call_only_begins(self) -> None:
        prober = NodeProber()
        assert all(isinstance(record, LeftOut) for record in prober.take())
        began = time.perf_counter()
        probe = take_probe(prober)
        assert probe.time >= began
        assert probe.seconds > 0
        assert len(probe.cores) == psutil.cpu_count()
        assert all(0 <= core <= 1 for core in probe.cores)
        assert all(0 <= stalled <= 1 for stalled in probe.pressure.values())
        assert 0 < probe.memory_bytes < probe.memory_total_bytes

    def test_a_busy_core_shows(self) -> None:
        def seen() -> bool:
            prober = NodeProber()
            prober.take()
            used = time.thread_time()
            while time.thread_time() - used < 0.2:
                pass
            probe = take_probe(prober)
            # Whichever core it ran on; the system counts in ticks of up to 10 ms.
            return sum(probe.cores) * probe.seconds > 0.15

        assert until(seen)

    def test_bytes_sent_show(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        for name in psutil.net_io_counters(pernic=True):
            if name in probes.LOOPBACK:
                (tmp_path / name / "device").mkdir(parents=True)
        monkeypatch.setattr(probes, "NETWORK_INTERFACES", tmp_path)
        prober = NodeProber()
        prober.take()
        with socket.socket(type=socket.SOCK_DGRAM) as receiver, socket.socket(type=socket.SOCK_DGRAM) as sender:
            receiver.bind(("127.0.0.1", 0))
            for _ in range(100):
                sender.sendto(bytes(10_000), receiver.getsockname())
        probe = take_probe(prober)
        sent, received = probe.network_sent_bytes_per_second, probe.network_received_bytes_per_second
        assert sent is not None
        assert received is not None
        assert sent * probe.seconds >= 1_000_000
        assert received * probe.seconds >= 1_000_000

    def test_loopback_is_not_the_network(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        counted = {name: io for name, io in psutil.net_io_counters(pernic=True).items() if name in probes.LOOPBACK}
        monkeypatch.setattr(psutil, "net_io_counters", lambda **_: counted)
        monkeypatch.setattr(probes, "NETWORK_INTERFACES", tmp_path)
        prober = NodeProber()
        assert left_out(prober.take())["network"] == "it has no interface except loopback"
        assert take_probe(prober).network_sent_bytes_per_second is None

    @needs_linux
    def test_what_proc_does_not_have_is_named_once(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
        monkeypatch.setattr(probes, "PRESSURE", tmp_path / "pressure")
        prober = NodeProber()
        missing = left_out(prober.take())
        pressures = {"cpu pressure", "io pressure", "memory pressure"}
        assert pressures | {"cores", "memory", "network", "loopback"} <= set(missing) <= pressures | {
            "cores", "memory", "network", "loopback", "disk",
        }  # fmt: skip
        assert missing["cpu pressure"] == f"{tmp_path}/pressure/cpu: No such file or directory"
        probe = take_probe(prober)
        assert (probe.cores, probe.memory_total_bytes, probe.pressure) == ([], 0, {})
        assert probe.network_received_bytes_per_second is None

    def test_pressure_of_another_form_is_left_out(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "cpu").write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=5\nfull nonsense\n")
        (tmp_path / "io").write_text("some avg10\n")
        (tmp_path / "memory").write_bytes(b"\xff\xfe")
        monkeypatch.setattr(probes, "PRESSURE", tmp_path)
        prober = NodeProber()
        assert {"io pressure", "memory pressure"} <= set(left_out(prober.take()))
        assert take_probe(prober).pressure == {"cpu_some": 0.0}

    def test_pressure_is_the_share_of_the_time(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        def stall(microseconds: int) -> None:
            for resource in probes.PRESSURES:
                (tmp_path / resource).write_text(f"some total={microseconds}\nfull total={microseconds // 2}\n")

        monkeypatch.setattr(probes, "PRESSURE", tmp_path)
        prober = NodeProber()
        stall(1_000_000)
        prober.take()
        time.sleep(0.02)
        stall(1_010_000)
        probe = take_probe(prober)
        assert set(probe.pressure) == {"cpu_some", "io_some", "io_full", "memory_some", "memory_full"}
        assert probe.pressure["io_some"] == pytest.approx(0.01 / probe.seconds)
        assert probe.pressure["io_full"] == pytest.approx(0.005 / probe.seconds)

    def test_no_disk_is_named(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(probes, "DISKS", tmp_path)
        assert "no disk" in left_out(NodeProber().take())["disk"]

    def test_cores_that_come_and_counters_that_fall_tell_nothing(self) -> None:
        one = CoreTimes(1.0, 2.0)
        assert core_shares([one], [one, one]) == []
        assert core_shares([one], [one]) == [0.0]
        before = {"network_sent": 10, "disk_read": 10}
        assert growth(before, {"network_sent": 5, "disk_read": 20, "cpu_some": 7}) == {"disk_read": 10}


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a TCP connection; the second has little room for what it does not read."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    with sender, receiver:
        yield sender, receiver


def probes_of(records: list[AnyRecord]) -> list[ConnectionProbe]:
    assert all(isinstance(record, ConnectionProbe) for record in records)
    return [record for record in records if isinstance(record, ConnectionProbe)]


Connection = tuple[socket.socket, socket.socket]


@needs_linux
class TestConnections:
    def test_a_slow_receiver_shows(self, connection: Connection) -> None:
        sender, _ = connection
        prober = ConnectionProber("worker", 3)
        assert prober.take({"shard 0": sender}) == []
        sender.setblocking(False)

        def limited() -> ConnectionProbe | None:
            with contextlib.suppress(BlockingIOError):
                sender.send(bytes(1 << 20))
            (probe,) = probes_of(prober.take({"shard 0": sender}))
            return probe if probe.receiver_limited > 0 else None

        probe = until(limited)
        assert (probe.role, probe.rank, probe.peer) == ("worker", 3, "shard 0")
        assert probe.receiver_limited <= probe.busy <= 1
        assert probe.seconds > 0

    def test_bytes_that_are_read_show(self, connection: Connection) -> None:
        sender, receiver = connection
        prober = ConnectionProber("worker", 0)
        prober.take({"shard 0": sender})

        def delivered() -> ConnectionProbe | None:
            sender.sendall(bytes(1_000))
            receiver.recv(1_000, socket.MSG_WAITALL)
            (probe,) = probes_of(prober.take({"shard 0": sender}))
            return probe if probe.delivery_bytes_per_second > 0 else None

        probe = until(delivered)
        assert 0 < probe.least_round_trip_seconds <= probe.round_trip_seconds < 10
        assert probe.retransmitted >= 0

    def test_an_idle_connection_waits_for_nothing(self, connection: Connection) -> None:
        sender, _ = connection
        prober = ConnectionProber("worker", 0)
        prober.take({"shard 0": sender})
        (probe,) = probes_of(prober.take({"shard 0": sender}))
        assert (probe.busy, probe.receiver_limited, probe.buffer_limited, probe.retransmitted) == (0, 0, 0, 0)

    def test_closed_and_new_sockets(self, connection: Connection) -> None:
        sender, receiver = connection
        prober = ConnectionProber("worker", 0)
        prober.take({"shard 0": sender, "shard 1": receiver})
        sender.close()
        assert [p.peer for p in probes_of(prober.take({"shard 0": sender, "shard 1": receiver}))] == ["shard 1"]
        # A connection that replaces another counts from when it is first seen.
        assert prober.take({"shard 0": receiver}) == []
        assert [p.peer for p in probes_of(prober.take({"shard 0": receiver}))] == ["shard 0"]

    def test_tls_is_probed_too(self, connection: Connection) -> None:
        sender, _ = connection
        context = ssl.create_default_context()
        prober = ConnectionProber("worker", 0)
        with context.wrap_socket(sender, server_hostname="shard", do_handshake_on_connect=False) as wrapped:
            prober.take({"shard 0": wrapped})
            assert len(probes_of(prober.take({"shard 0": wrapped}))) == 1

    def test_another_thread_may_close(self, connection: Connection) -> None:
        sender, receiver = connection
        prober = ConnectionProber("worker", 0)
        closer = threading.Timer(0.02, receiver.close)
        closer.start()
        until(lambda: len(prober.take({"a": sender, "b": receiver})) == 1 and not closer.is_alive())
        closer.join()


class TestConnectionsNotOffered:
    def test_another_system(self, monkeypatch: pytest.MonkeyPatch, connection: Connection) -> None:
        monkeypatch.setattr(sys, "platform", "plan9")
        prober = ConnectionProber("worker", 0)
        sockets = dict(zip(("a", "b"), connection, strict=True))
        assert left_out(prober.take(sockets)) == {"connections": "TCP_INFO is read only on Linux; this is plan9"}
        assert prober.take(sockets) == []

    @needs_linux
    def test_an_older_kernel(self) -> None:
        class Old(socket.socket):
            def getsockopt(self, *_: int) -> bytes:  # type: ignore[override]
                return bytes(104)

        prober = ConnectionProber("worker", 0)
        with Old() as old:
            assert "104 bytes; 192" in left_out(prober.take({"a": old}))["connections"]
            assert prober.take({"a": old}) == []

    @needs_linux
    def test_a_socket_without_tcp(self) -> None:
        here, there = socket.socketpair()
        prober = ConnectionProber("worker", 0)
        with here, there:
            assert "no TCP_INFO" in left_out(prober.take({"a": here}))["connections"]
