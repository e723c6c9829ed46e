"""What were a node and its connections doing during the run?

A prober reads the system's counters and reports the difference from the last time. What a system does not offer is
named once, with the reason, and left out: a probe never fails a run.
"""

from __future__ import annotations

import errno
import math
import socket
import struct
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psutil

from paceline.telemetry.records import AnyRecord, ConnectionProbe, LeftOut, NodeProbe

PRESSURE = Path("/proc/pressure")
NETWORK_INTERFACES = Path("/sys/class/net")
DISKS = Path("/sys/block")
LOOPBACK = ("lo", "lo0")

FLOWS = ("network_sent", "network_received", "loopback", "disk_read", "disk_written")
# `full` means that all tasks wait at once, which never happens for processors.
PRESSURES = {"cpu": ("some",), "io": ("some", "full"), "memory": ("some", "full")}
MICRO = 1e-6

NOT_OFFERED = (OSError, NotImplementedError, RuntimeError, LookupError, ValueError)
T = TypeVar("T")


class CoreTimes(NamedTuple):
    """Seconds of a core since the system started."""

    busy: float
    total: float


class Counters(NamedTuple):
    """The system's counters at one moment: bytes as in `FLOWS`, and microseconds of pressure. What it does not offer is
    missing.
    """

    time: float
    cores: list[CoreTimes]
    totals: dict[str, int]


class NodeProber:
    """Probes the node that it runs on, including what other programs use.

    `network` is what crosses the node's boundary, without loopback, bridges and bonds (bytes of the latter also pass a
    real interface). `loopback` is what processes on the node send each other, roles among them. Likewise, `disk` counts real
    disks, not what is stacked on them. Memory and cores are the system's, not a container's limits.
    """

    def __init__(self) -> None:
        self._named: set[str] = set()
        # The same for all nodes of one machine, such as its containers and network namespaces.
        self._machine = ""
        with suppress(OSError):
            self._machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._news: list[AnyRecord] = []
        self._before: Counters | None = None
        self._interfaces: list[str] = []
        self._disks: list[str] = []

    def take(self) -> list[AnyRecord]:
        """A probe of the time since the last call (none for the first call), and what is newly left out."""
        before, now = self._before, self._read()
        memory = self._offered("memory", psutil.virtual_memory)
        self._before = now
        found, self._news = self._news, []
        if before is None:
            return found
        seconds, grown = now.time - before.time, growth(before.totals, now.totals)
        flows: dict[str, Any] = {f"{name}_bytes_per_second": grown[name] / seconds for name in FLOWS if name in grown}
        probe = NodeProbe(
            time=now.time,
            machine=self._machine,
            seconds=seconds,
            cores=core_shares(before.cores, now.cores),
            memory_bytes=memory.total - memory.available if memory else 0,
            memory_total_bytes=memory.total if memory else 0,
            **flows,
            pressure={name: share(grown[name] * MICRO, seconds) for name in grown if name not in FLOWS},
        )
        return [probe, *found]

    def _read(self) -> Counters:
        cores = self._offered("cores", read_cores) or []
        totals: dict[str, int] = {}
        readers = {"network": self._read_network, "loopback": read_loopback, "disk": self._read_disks}
        readers |= {f"{resource} pressure": partial(read_pressure, resource) for resource in PRESSURES}
        for name, read in readers.items():
            totals |= self._offered(name, read) or {}
        return Counters(time.perf_counter(), cores, totals)

    def _read_network(self) -> dict[str, int]:
        counted = psutil.net_io_counters(pernic=True, nowrap=False)
        if not self._interfaces:
            outward = [name for name in counted if name not in LOOPBACK]
            self._interfaces = with_device(NETWORK_INTERFACES, counted) or outward
            if not self._interfaces:
                raise NotImplementedError("it has no interface except loopback")
        there = [counted[name] for name in self._interfaces if name in counted]
        return {"network_sent": sum(c.bytes_sent for c in there), "network_received": sum(c.bytes_recv for c in there)}

    def _read_disks(self) -> dict[str, int]:
        counted = psutil.disk_io_counters(perdisk=True, nowrap=False)
        if not self._disks:
            self._disks = with_device(DISKS, counted) if DISKS.exists() else list(counted)
            if not self._disks:
                raise NotImplementedError("no disk counts its bytes")
        there = [counted[name] for name in self._disks if name in counted]
        return {"disk_read": sum(c.read_bytes for c in there), "disk_written": sum(c.write_bytes for c in there)}

    def _offered(self, name: str, read: Callable[[], T]) -> T | None:
        """What `read` returns; None if it is not offered, which is recorded the first time."""
        try:
            return read()
        except NOT_OFFERED as error:
            if name not in self._named:
                self._named.add(name)
                self._news.append(left_out(name, reason(error)))
            return None


class SeenSocket(NamedTuple):
    """A socket as it was in the last call. A new connection to the same peer is a different socket."""

    socket: weakref.ref[socket.socket]
    time: float
    info: tuple[int, ...]


class ConnectionProber:
    """Probes a role's connections through the system's TCP."""

    def __init__(self, role: str, rank: int) -> None:
        self._role = role
        self._rank = rank
        self._seen: dict[str, SeenSocket] = {}
        self._offered = True

    def take(self, sockets: dict[str, socket.socket]) -> list[AnyRecord]:
        """A probe of each open socket that was also open in the last call, named by its peer.

        Reads no data and changes nothing. Other threads may use or close the sockets.
        """
        if not self._offered:
            return []
        seen, probes = self._seen, list[AnyRecord]()
        self._seen = {}
        for peer, connection in sockets.items():
            try:
                info = read_tcp(connection)
            except NotImplementedError as error:
                self._offered = False
                return [left_out("connections", str(error))]
            if info is None:
                continue
            now = SeenSocket(weakref.ref(connection), time.perf_counter(), info)
            before = seen.get(peer)
            if before is not None and before.socket() is connection:
                probes.append(self._probe(peer, before, now))
            self._seen[peer] = now
        return probes

    def _probe(self, peer: str, before: SeenSocket, now: SeenSocket) -> ConnectionProbe:
        seconds = now.time - before.time
        grown = [new - old for old, new in zip(before.info, now.info, strict=True)]
        least = now.info[LEAST_ROUND_TRIP]
        return ConnectionProbe(
            time=now.time,
            role=self._role,
            rank=self._rank,
            peer=peer,
            seconds=seconds,
            delivered_bytes=grown[DELIVERED],
            busy=share(grown[BUSY] * MICRO, seconds),
            receiver_limited=share(grown[RECEIVER_LIMITED] * MICRO, seconds),
            buffer_limited=share(grown[BUFFER_LIMITED] * MICRO, seconds),
            round_trip_seconds=now.info[ROUND_TRIP] * MICRO,
            least_round_trip_seconds=(now.info[ROUND_TRIP] if least == NO_ROUND_TRIP else least) * MICRO,
            delivery_bytes_per_second=float(now.info[DELIVERY_RATE]),
            retransmitted=grown[RETRANSMITTED],
        )


# -- reading the system's counters


def read_cores() -> list[CoreTimes]:
    """The times of each core. Waiting for a disk counts as idle, time that a hypervisor took away as busy."""
    found = []
    for times in psutil.cpu_times(percpu=True):
        # `user` and `nice` already include a guest's time.
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        found.append(CoreTimes(total - times.idle - getattr(times, "iowait", 0.0), total))
    return found


def read_loopback() -> dict[str, int]:
    """Bytes through loopback; each is sent and received, and counts once."""
    counted = psutil.net_io_counters(pernic=True, nowrap=False)
    if not (there := [counted[name] for name in LOOPBACK if name in counted]):
        raise NotImplementedError("it has no loopback interface")
    return {"loopback": sum(one.bytes_sent for one in there)}


def read_pressure(resource: str) -> dict[str, int]:
    """Microseconds in which tasks stalled for a resource, as `resource_some` and `resource_full`."""
    totals = {}
    for line in (PRESSURE / resource).read_text("ascii").splitlines():
        kind, *fields = line.split()
        if kind in PRESSURES[resource]:
            totals[f"{resource}_{kind}"] = int(dict(field.split("=") for field in fields)["total"])
    return totals


def with_device(folder: Path, names: dict[str, Any]) -> list[str]:
    """The names that stand for hardware, real or virtual."""
    return [name for name in names if (folder / name / "device").exists()]


TCP_INFO = struct.Struct("=8B24I4Q6I4Q")
"""Linux's `tcp_info` up to `tcpi_sndbuf_limited`, which came with Linux 4.10; later systems append fields.
Times are in microseconds.
"""
ROUND_TRIP, RETRANSMITTED, DELIVERED, LEAST_ROUND_TRIP = 8 + 15, 8 + 23, 8 + 24 + 2, 8 + 24 + 4 + 3
DELIVERY_RATE, BUSY, RECEIVER_LIMITED, BUFFER_LIMITED = range(42, 46)
NO_ROUND_TRIP = 0xFFFFFFFF


def read_tcp(connection: socket.socket) -> tuple[int, ...] | None:
    """The fields of `tcp_info` now; None if the connection is closed.

    Raises NotImplementedError if the system does not offer them.
    """
    if sys.platform != "linux":
        raise NotImplementedError(f"TCP_INFO is read only on Linux; this is {sys.platform}")
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    except OSError as error:
        if error.errno in (errno.ENOPROTOOPT, errno.EOPNOTSUPP):
            raise NotImplementedError(f"this system has no TCP_INFO: {error.strerror}") from None
        return None
    if len(info) < TCP_INFO.size:
        raise NotImplementedError(f"this system's TCP_INFO has {len(info)} bytes; {TCP_INFO.size} are needed")
    return TCP_INFO.unpack_from(info)


# -- differences


def share(spent: float, seconds: float) -> float:
    """A share of the time, cut to 0 to 1 because counters tick more coarsely than the clock."""
    return min(max(spent / seconds, 0.0), 1.0)


def core_shares(before: list[CoreTimes], now: list[CoreTimes]) -> list[float]:
    """How busy each core was; empty if cores have come or gone."""
    if len(before) != len(now):
        return []
    return [
        share(b.busy - a.busy, b.total - a.total) if b.total > a.total else 0.0
        for a, b in zip(before, now, strict=True)
    ]


def growth(before: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    """By how much totals have grown, without those that fell because an interface or a disk has gone."""
    return {name: total - before[name] for name, total in now.items() if total >= before.get(name, math.inf)}


# -- what is not there


def left_out(name: str, why: str) -> LeftOut:
    return LeftOut(time=time.perf_counter(), name=name, reason=why)


def reason(error: Exception) -> str:
    """An error for people, with the file that it concerns."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__
