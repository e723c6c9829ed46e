"""How does one machine become several hosts with slow links between them?

Each host is a network namespace with one link, rate-limited both ways, to a switch: a bridge in a namespace of its own.
The machine's own network is not touched, and the hosts cannot reach it. Needs Linux, `ip`, `tc` and root.

    with Hosts(5, "1.8Gbit") as hosts:
        hosts.start(0, ["python", "-m", "http.server"])

When the context ends, for whatever reason, everything is removed: processes, namespaces and the folder.

    python benchmarks/hosts.py [--bandwidth 1.8Gbit]

measures the throughput of TCP over the links.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Any, NamedTuple

import numpy as np

# As far as a queue of a link grows before it drops, and what may pass at once: a few of the 64 KiB that TCP hands down.
QUEUE_LATENCY = "10ms"
# A link that was idle lets this much pass at once; more would make alternating directions look faster than they are.
BURST_SECONDS, LEAST_BURST_BYTES = 0.001, 32 << 10
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
END_SECONDS, KILL_SECONDS = 2.0, 30.0
SAMPLE_SECONDS = 0.25
TEST_PORT = 5201
TEST_SECONDS = 2.0


class Usage(NamedTuple):
    """What a host has used since it was made: bytes through its link and seconds of processors."""

    sent_bytes: float
    received_bytes: float
    cpu_seconds: float


class Hosts:
    """`count` hosts on one switch, as a context; `close` may be called any number of times.

    Host i has the address `addresses[i]`, which is unknown outside, and the folder `folders[i]` for its files.
    """

    def __init__(self, count: int, bandwidth: str) -> None:
        if os.geteuid() != 0:
            sys.exit("error: network namespaces need root\nhint: run it with sudo")
        for tool in ("ip", "tc"):
            if shutil.which(tool) is None:
                sys.exit(f"error: `{tool}` was not found\nhint: it comes with the package iproute2")
        check_bandwidth(bandwidth)
        self.bandwidth = bandwidth
        self.names = [f"plb{os.getpid()}-{i}" for i in range(count)]
        self.addresses = [f"10.77.0.{i + 1}" for i in range(count)]
        self._switch = f"plb{os.getpid()}-switch"
        self._processes: list[subprocess.Popen[bytes]] = []
        # For each process ever seen in a host its processor time, so that a sum never falls when a process ends.
        self._cpu_seconds: list[dict[tuple[int, int], float]] = [{} for _ in range(count)]
        self._traffic = [(0, 0)] * count
        # Its path is short, because Ray puts Unix sockets below, whose paths may take 107 bytes.
        self._temporary = tempfile.TemporaryDirectory(prefix="plb", ignore_cleanup_errors=True)
        self.folder = Path(self._temporary.name)
        self.folders = [self.folder / str(i) for i in range(count)]

    def __enter__(self) -> Hosts:
        exit_on_signals()
        try:
            for folder in self.folders:
                folder.mkdir()
            self._make_switch()
            for i in range(len(self.names)):
                self._make_host(i)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make_switch(self) -> None:
        run("ip", "netns", "add", self._switch)
        run("ip", "-n", self._switch, "link", "add", "switch", "type", "bridge")
        run("ip", "-n", self._switch, "link", "set", "switch", "up")

    def _make_host(self, i: int) -> None:
        name, port = self.names[i], f"port{i}"
        run("ip", "netns", "add", name)
        run("ip", "-n", self._switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "-n", self._switch, "link", "set", port, "master", "switch", "up")
        run("ip", "-n", name, "address", "add", f"{self.addresses[i]}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            run("ip", "-n", name, "link", "set", device, "up")
        for namespace, device in ((name, "eth0"), (self._switch, port)):
            burst = max(LEAST_BURST_BYTES, int(bits_per_second(self.bandwidth) / 8 * BURST_SECONDS))
            limit = ["rate", self.bandwidth, "burst", str(burst), "latency", QUEUE_LATENCY]
            run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *limit)

    def start(
        self,
        host: int,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a command on a host, in its own session: Ctrl-C reaches it only through `close`."""
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.names[host], *command],
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        self._processes.append(process)
        return process

    def usage(self) -> list[Usage]:
        """What each host has used so far. Idle hosts keep the last known traffic. Starts no process."""
        pids = self._pids()
        for i, name in enumerate(self.names):
            for pid in pids[name]:
                try:
                    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                    self._traffic[i] = read_traffic(pid)
                except OSError:
                    continue  # it has just ended
                # The fields after the name: user and system time are 11 and 12, the time of the start 19.
                self._cpu_seconds[i][pid, int(fields[19])] = (int(fields[11]) + int(fields[12])) / CLOCK_TICKS
        return [
            Usage(*traffic, sum(seconds.values()))
            for traffic, seconds in zip(self._traffic, self._cpu_seconds, strict=True)
        ]

    def _pids(self) -> dict[str, list[int]]:
        """The processes in each existing namespace, including the switch's."""
        names: dict[int, str] = {}
        for name in [*self.names, self._switch]:
            path = Path("/run/netns", name)
            if path.exists():
                names[path.stat().st_ino] = name
        found: dict[str, list[int]] = {name: [] for name in [*self.names, self._switch]}
        for entry in os.listdir("/proc"):
            if not entry.isdecimal():
                continue
            try:
                inode = os.stat(f"/proc/{entry}/ns/net").st_ino
            except OSError:
                continue  # it has just ended
            if inode in names:
                found[names[inode]].append(int(entry))
        return found

    def end_processes(self) -> None:
        """End all processes in the namespaces and wait for them."""
        self._signal_all(signal.SIGTERM)
        deadline = time.monotonic() + END_SECONDS
        while any(self._pids().values()) and time.monotonic() < deadline:
            time.sleep(0.05)
        deadline = time.monotonic() + KILL_SECONDS
        while any(pids := self._pids().values()):
            self._signal_all(signal.SIGKILL)
            if time.monotonic() > deadline:
                raise RuntimeError(f"processes {list(pids)} do not end")
            time.sleep(0.05)
        for process in self._processes:
            process.wait()
        self._processes.clear()

    def _signal_all(self, number: signal.Signals) -> None:
        for name, pids in self._pids().items():
            for pid in pids:
                signal_in_namespace(name, pid, number)

    def close(self) -> None:
        """End all processes, remove the namespaces and the folder. Interrupts are delayed until then."""
        with uninterrupted():
            self.end_processes()
            for name in [*self.names, self._switch]:
                if Path("/run/netns", name).exists():
                    run("ip", "netns", "delete", name)
            self._temporary.cleanup()


class Sampler:
    """A context that samples what each host has used; `rates` tells what it used in a window."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._times: list[float] = []
        self._seen: list[list[Usage]] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            self._times.append(time.monotonic())
            self._seen.append(self._hosts.usage())

    def rates(self, first: float, last: float) -> list[Usage]:
        """What each host used per second between two moments of `time.monotonic`."""
        seen = np.array(self._seen, np.float64)  # [moments, hosts, 3]
        rates = [
            [float(np.diff(np.interp([first, last], self._times, seen[:, i, k]))[0]) / (last - first) for k in range(3)]
            for i in range(seen.shape[1])
        ]
        return [Usage(*rate) for rate in rates]


def run(*command: str) -> str:
    """Run a command to its end and return its output. An error contains the command's message."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout


def read_traffic(pid: int) -> tuple[int, int]:
    """Bytes sent and received through eth0 of the namespace that a process is in."""
    for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines():
        device, _, counters = line.partition(":")
        if device.strip() == "eth0":
            fields = counters.split()
            return int(fields[8]), int(fields[0])
    return 0, 0


def check_bandwidth(text: str) -> None:
    """Refuse what `tc` cannot read, before anything is created."""
    if re.fullmatch(r"\d+(\.\d+)?[KMG]bit", text, re.IGNORECASE) is None:
        sys.exit(f"error: `bandwidth` is `{text}`; it is a number and Kbit, Mbit or Gbit\nhint: --bandwidth 1.8Gbit")


def bits_per_second(bandwidth: str) -> float:
    """
    >>> bits_per_second("1.8Gbit")
    1800000000.0
    """
    return float(bandwidth[:-4]) * {"k": 1e3, "m": 1e6, "g": 1e9}[bandwidth[-4].lower()]


def signal_in_namespace(name: str, pid: int, number: signal.Signals) -> None:
    """Signal a process if it is still in this network namespace, but never another one that got the same number."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if os.stat(f"/proc/{pid}/ns/net").st_ino == Path("/run/netns", name).stat().st_ino:
            signal.pidfd_send_signal(process, number)
    except (ProcessLookupError, FileNotFoundError):
        pass  # it has just ended
    finally:
        os.close(process)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let nothing except SIGKILL interrupt a clean-up."""
    held = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, *ENDING_SIGNALS)}
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)


def exit_on_signals() -> None:
    """Let SIGTERM and SIGHUP unwind the stack, as Ctrl-C does, so that contexts clean up."""
    for number in ENDING_SIGNALS:
        signal.signal(number, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def receive(num_senders: int) -> None:
    """Receive from this many senders at once; print a JSON line with their total speed."""
    with socket.create_server(("", TEST_PORT)) as server, selectors.DefaultSelector() as ready:
        print("ready", flush=True)
        for _ in range(num_senders):
            ready.register(server.accept()[0], selectors.EVENT_READ)
        buffer, total, began = bytearray(1 << 20), 0, time.perf_counter()
        while ready.get_map():
            for key, _ in ready.select():
                assert isinstance(key.fileobj, socket.socket)
                count = key.fileobj.recv_into(buffer)
                total += count
                if not count:
                    ready.unregister(key.fileobj)
                    key.fileobj.close()
        print(json.dumps({"bits_per_second": round(8 * total / (time.perf_counter() - began))}), flush=True)


def send(address: str) -> None:
    with socket.create_connection((address, TEST_PORT)) as connection:
        content, deadline = bytes(1 << 20), time.monotonic() + TEST_SECONDS
        while time.monotonic() < deadline:
            connection.sendall(content)


def measure_links(hosts: Hosts) -> list[dict[str, Any]]:
    """The throughput of TCP from host 0 to host 1, back, and from two hosts to one at once (a shared link)."""
    return [
        {"from": senders, "to": to, "bits_per_second": measure_link(hosts, senders, to)}
        for senders, to in (([0], 1), ([1], 0), ([1, 2], 0))
    ]


def measure_link(hosts: Hosts, senders: list[int], to: int) -> int:
    receiver = hosts.start(to, [sys.executable, __file__, "--receive", str(len(senders))], stdout=subprocess.PIPE)
    assert receiver.stdout is not None
    receiver.stdout.readline()
    for sender in senders:
        hosts.start(sender, [sys.executable, __file__, "--send", hosts.addresses[to]])
    answer = json.loads(receiver.stdout.readline())
    receiver.stdout.close()
    receiver.wait()
    return int(answer["bits_per_second"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bandwidth", default="1.8Gbit")
    parser.add_argument("--receive", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--send", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.receive:
        receive(arguments.receive)
    elif arguments.send:
        send(arguments.send)
    else:
        with Hosts(3, arguments.bandwidth) as hosts:
            for line in measure_links(hosts):
                print(json.dumps(line))


if __name__ == "__main__":
    main()
