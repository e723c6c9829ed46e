"""Does paceline keep its promises while things go wrong? Trains for minutes or hours and injects random faults.

    sudo python benchmarks/soak.py --minutes 60 [--seed 1] [--write]

Three hosts (network namespaces, `benchmarks/hosts.py`) form a Ray cluster. One run after another trains on it or in one
process, sparse rows and images, at every pace. Every few seconds something happens to the run: a process is killed or
stopped, connections are reset, a link gets slow, the disk is full, the clock jumps, strangers storm a port. A run whose
command was killed, or gave up on a full disk, is resumed. After each run the script checks:

- In sync the model has the bits of an undisturbed run. At other paces every row counted once per epoch.
- The staleness bound held.
- Nothing is left: no process, no partial file, no shared memory.
- No process needs more memory at its end than shortly after its start.

Each line of output is one fault or one run. The same seed gives the same sequence of runs and faults. The exit code is
1 if anything was violated. Needs Linux, `ip`, `tc`, `ss` and root; touches nothing outside its namespaces and folders.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from cluster import RAY_PORT, environment, lab, say
from embedded import machine
from hosts import Hosts, exit_on_signals, run

HOSTS, BANDWIDTH, SLOW_BANDWIDTH = 3, "2Gbit", "20Mbit"
DISK_BYTES = 256 << 20
# A counting run learns so slowly that every row changes its weight by the same amount each time.
RATE, COUNTED_ROWS, COUNTED_BATCH = 2.0**-40, 997, 64
MOST_GROWTH_BYTES = 100 << 20
LEFT_SECONDS, RUN_SECONDS, SETTLE_SECONDS = 25.0, 480.0, 8.0
CLOCK = """
import os, time
_time, _time_ns, _file = time.time, time.time_ns, os.environ.get("SOAK_CLOCK", "")
def _offset():
    try:
        return int(open(_file).read() or 0)
    except (OSError, ValueError):
        return 0
if _file:
    time.time = lambda: _time() + _offset()
    time.time_ns = lambda: _time_ns() + _offset() * 10**9
"""


class Scenario(NamedTuple):
    """A run: its flags, its data, how many rows it must train on, and whether its bits or its counts are checked."""

    flags: dict[str, Any]
    data: str
    rows: int
    check: str
    cluster: bool = True


SPARSE = {"batch_size": 40, "test_every": 100_000}
COUNTING = {"batch_size": COUNTED_BATCH, "test_every": 100_000, "optimizer": "sgd", "learning_rate": RATE}
IMAGES = {"model": "softmax", "batch_size": 20, "test_every": 50_000, "optimizer": "sgd", "learning_rate": 0.05}
SCENARIOS = {
    "sparse, sync": Scenario({**SPARSE, "pace": "sync", "epochs": 60}, "clicks", 60 * 20_000, "bits"),
    "sparse, async": Scenario({**COUNTING, "pace": "async", "epochs": 5000}, "counted", 5000 * COUNTED_ROWS, "counts"),
    "sparse, pace 2": Scenario({**COUNTING, "pace": 2, "epochs": 5000}, "counted", 5000 * COUNTED_ROWS, "counts"),
    "images, sync": Scenario({**IMAGES, "pace": "sync", "epochs": 150}, "images", 150 * 5000, "bits"),
    "images, async": Scenario({**IMAGES, "pace": "async", "epochs": 200}, "images", 200 * 5000, "rows"),
    "images, pace 2": Scenario({**IMAGES, "pace": 2, "epochs": 200}, "images", 200 * 5000, "rows"),
    "sparse, sync, one process": Scenario(
        {**SPARSE, "pace": "sync", "epochs": 1500}, "clicks", 1500 * 20_000, "bits", cluster=False
    ),
    "sparse, async, one process": Scenario(
        {**SPARSE, "pace": "async", "epochs": 1500}, "clicks", 1500 * 20_000, "rows", cluster=False
    ),
}


class Soak:
    """What all runs share: hosts, data, a small disk, and a clock that can be moved."""

    def __init__(self, hosts: Hosts, env: dict[str, str], disk: Path, clock: Path, chance: random.Random) -> None:
        self.hosts = hosts
        self.env = environment(env)
        self.disk = disk
        self.clock = clock
        self.chance = chance
        self.references: dict[str, str] = {}

    def train(self, scenario: Scenario, path: Path, log: Path) -> subprocess.Popen[bytes]:
        flags = {"data": self.hosts.folder / scenario.data, "run": path, "checkpoint_every": 1, "seed": 1, "workers": 2}
        flags |= scenario.flags
        if scenario.cluster:
            flags |= {"engine": "ray", "shards": 1, "address": f"{self.hosts.addresses[0]}:{RAY_PORT}"}
        return self.start(["train", *words(flags)], log)

    def start(self, arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as out:
            command = [sys.executable, "-m", "paceline", *arguments]
            return self.hosts.start(0, command, env=self.env, stdout=out, stderr=out)

    def reference(self, name: str, scenario: Scenario) -> str:
        """The `model_sha256` of the same run with threads and without faults."""
        if name not in self.references:
            path = self.hosts.folder / "reference"
            still = scenario._replace(cluster=False)
            if self.train(still, path, path.with_suffix(".log")).wait():
                sys.exit(f"error: the undisturbed run failed\n{path.with_suffix('.log').read_text()[-3000:]}")
            self.references[name] = json.loads((path / "result.json").read_text())["model_sha256"]
            shutil.rmtree(path)
        return self.references[name]


class Disturbed:
    """One run, with everything that happens to it."""

    def __init__(self, soak: Soak, name: str, scenario: Scenario) -> None:
        self.soak, self.name, self.scenario = soak, name, scenario
        self.path, self.log = soak.disk / "run", soak.hosts.folder / "soak.log"
        shutil.rmtree(self.path, ignore_errors=True)
        self.log.write_bytes(b"")
        self.process = soak.train(scenario, self.path, self.log)
        self.seen: dict[int, str] = {}
        self.memory: dict[int, list[tuple[float, int]]] = {}
        self.may_end = False
        self.faults: list[str] = []

    def to_its_end(self, until: float) -> list[str]:
        """Disturb the run until it is over; return what was violated."""
        chance, deadline = self.soak.chance, time.monotonic() + RUN_SECONDS
        next_fault = time.monotonic() + chance.uniform(2, 5)
        while True:
            self._watch()
            if self.process.poll() is not None:
                if self.process.returncode == 0 or (self.may_end and self.finished):
                    return self._check()
                if not self.may_end:
                    return [f"the command ended with {self.process.returncode}"]
                self._resume()
            if time.monotonic() > deadline:
                os.kill(self.process.pid, signal.SIGABRT)
                return [f"the run was not over after {RUN_SECONDS:g} s"]
            if self.training and next_fault < time.monotonic() < until:
                self._disturb()
                next_fault = time.monotonic() + chance.uniform(1, 6)
            time.sleep(0.1)

    @property
    def finished(self) -> bool:
        """Whether the command had ended its work before it was killed."""
        with suppress(OSError, ValueError):
            return bool(json.loads((self.path / "result.json").read_text())["status"] == "done")
        return False

    @property
    def training(self) -> bool:
        return (self.path / "metrics.jsonl").exists()

    def roles(self, role: str = "") -> list[dict[str, Any]]:
        with suppress(OSError, ValueError):
            return [
                r for r in json.loads((self.path / "roles.json").read_text()) if role in ("", r["role"]) and r["pid"]
            ]
        return []

    def _disturb(self) -> None:
        possible = [fault for fault in FAULTS if self.scenario.cluster or fault in IN_ONE_PROCESS]
        fault = self.soak.chance.choice(possible)
        if FAULTS[fault](self):
            self.faults.append(fault)
            say({"fault": fault, "run": self.name, "at_seconds": round(time.monotonic() - BEGAN, 1)})

    def _resume(self) -> None:
        """After a kill or a full disk. Without a checkpoint the run starts again."""
        self.may_end = False
        time.sleep(1)
        begun = (self.path / "checkpoints" / "latest").exists()
        if not begun:
            shutil.rmtree(self.path, ignore_errors=True)
        self.process = (
            self.soak.start(["resume", str(self.path)], self.log)
            if begun
            else self.soak.train(self.scenario, self.path, self.log)
        )

    def _watch(self) -> None:
        """Note the processes of the run and what memory they use."""
        for pid, what in {self.process.pid: "command"}.items() | {r["pid"]: r["role"] for r in self.roles()}.items():
            with suppress(psutil.Error):
                used = psutil.Process(pid).memory_info()
                self.seen[pid] = what
                self.memory.setdefault(pid, []).append((time.monotonic(), used.rss - used.shared))

    def _check(self) -> list[str]:
        result = json.loads((self.path / "result.json").read_text())
        found = []
        if result["rows"] != self.scenario.rows:
            found.append(f"{result['rows']:,} rows instead of {self.scenario.rows:,}")
        if self.scenario.check == "bits" and result["model_sha256"] != self.soak.reference(self.name, self.scenario):
            found.append("other bits than the undisturbed run")
        if self.scenario.check == "counts":
            found += wrong_counts(self.path, self.scenario.rows // COUNTED_ROWS)
        bound = self.scenario.flags["pace"]
        if isinstance(bound, int) and result["max_staleness"] > bound:
            found.append(f"staleness {result['max_staleness']} at pace {bound}")
        if "Traceback" in self.log.read_text(errors="replace"):
            found.append("a traceback was printed")
        return found + self._left() + self._grown()

    def _left(self) -> list[str]:
        deadline = time.monotonic() + LEFT_SECONDS
        while left := [pid for pid in self.seen if psutil.pid_exists(pid) and not_ended(pid)]:
            if time.monotonic() > deadline:
                return [f"{self.seen[pid]} (process {pid}) is left" for pid in left]
            time.sleep(0.2)
        partial = [str(path.relative_to(self.path)) for path in self.path.rglob("*") if "partial" in path.name]
        shared = [name for name in os.listdir("/dev/shm") if "paceline" in name]
        return [f"{name} is left" for name in partial + shared]

    def _grown(self) -> list[str]:
        found = []
        for pid, samples in self.memory.items():
            settled = [used for at, used in samples if at > samples[0][0] + SETTLE_SECONDS]
            if len(settled) > 20 and settled[-1] - settled[0] > MOST_GROWTH_BYTES:
                found.append(f"{self.seen[pid]} grew by {(settled[-1] - settled[0]) >> 20} MB")
        return found


def words(flags: dict[str, Any]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]


def not_ended(pid: int) -> bool:
    with suppress(psutil.Error):
        return bool(psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD))
    return False


def wrong_counts(path: Path, epochs: int) -> list[str]:
    """Does every weight say that its row counted once in each epoch?

    A row counts 1/64 in an epoch, or 1/37 if it was in the short last batch.
    """
    import paceline

    short_batch = COUNTED_ROWS % COUNTED_BATCH
    visits = np.abs(paceline.load(path).weights.astype(np.float64)) / (RATE / 2)
    short = (visits - epochs / COUNTED_BATCH) / (1 / short_batch - 1 / COUNTED_BATCH)
    whole = short.round()
    if np.abs(short - whole).max() > 0.05 or whole.min() < 0 or whole.sum() != epochs * short_batch:
        return [f"rows did not count once per epoch: {whole.sum():,.0f} of {epochs * short_batch:,} in short batches"]
    return []


# Faults: each is a function of the disturbed run that says whether it could be injected.


def send(run: Disturbed, role: str, number: signal.Signals) -> bool:
    roles = run.roles(role)
    if not roles:
        return False
    pid = run.soak.chance.choice(roles)["pid"]
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def kill_command(run: Disturbed) -> bool:
    run.may_end = True
    run.process.kill()
    run.process.wait()
    return True


def pause_command(run: Disturbed) -> bool:
    run.process.send_signal(signal.SIGSTOP)
    time.sleep(run.soak.chance.uniform(0.5, 3))
    run.process.send_signal(signal.SIGCONT)
    return True


def reset_connections(disturbed: Disturbed) -> bool:
    ports = {r["address"].rpartition(":")[2] for r in disturbed.roles("shard") if r["address"]}
    for port in ports:
        for host in disturbed.soak.hosts.names:
            for side in ("sport", "dport"):
                subprocess.run(["ip", "netns", "exec", host, "ss", "-K", side, "=", f":{port}"], capture_output=True)
    return bool(ports)


def slow_link(disturbed: Disturbed) -> bool:
    host = disturbed.soak.chance.choice(disturbed.soak.hosts.names)
    change = ["tc", "-n", host, "qdisc", "change", "dev", "eth0", "root", "tbf", "burst", "262144", "latency", "10ms"]
    run(*change, "rate", SLOW_BANDWIDTH)
    time.sleep(disturbed.soak.chance.uniform(1, 3))
    run(*change, "rate", BANDWIDTH)
    return True


def full_disk(disturbed: Disturbed) -> bool:
    disturbed.may_end = True
    filler = disturbed.soak.disk / "filler"
    with filler.open("wb") as out, suppress(OSError):
        while True:
            out.write(bytes(1 << 20))
            out.flush()
    time.sleep(disturbed.soak.chance.uniform(1, 4))
    filler.unlink()
    return True


def clock_jump(disturbed: Disturbed) -> bool:
    disturbed.soak.clock.write_text(str(disturbed.soak.chance.choice([-86_400, -3600, -30, 30, 3600, 86_400])))
    return True


def strangers(disturbed: Disturbed) -> bool:
    """A storm of connections without the token: idle ones and ones that send garbage."""
    addresses = [r["address"] for r in disturbed.roles() if r["address"]]
    if not addresses:
        return False
    code = "import sys; sys.path.insert(0, sys.argv[1]); import soak; soak.storm(sys.argv[2])"
    target = disturbed.soak.chance.choice(addresses)
    command = [sys.executable, "-c", code, str(Path(__file__).parent), target]
    disturbed.soak.hosts.start(1, command, env=disturbed.soak.env, stderr=subprocess.DEVNULL).wait()
    return True


def storm(address: str) -> None:
    """Open 200 connections per second for three seconds; half of them say something that is not a handshake."""
    host, _, port = address.rpartition(":")
    opened, until = [], time.monotonic() + 3
    while time.monotonic() < until:
        with suppress(OSError):
            opened.append(socket.create_connection((host.rpartition("//")[2], int(port)), timeout=1))
            if len(opened) % 2:
                opened[-1].sendall(os.urandom(64))
        time.sleep(0.005)


FAULTS: dict[str, Callable[[Disturbed], bool]] = {
    "worker killed": lambda run: send(run, "worker", signal.SIGKILL),
    "shard killed": lambda run: send(run, "shard", signal.SIGKILL),
    "worker stopped": lambda run: send(run, "worker", signal.SIGSTOP),
    "shard stopped": lambda run: send(run, "shard", signal.SIGSTOP),
    "command killed": kill_command,
    "command paused": pause_command,
    "connections reset": reset_connections,
    "slow link": slow_link,
    "full disk": full_disk,
    "clock jump": clock_jump,
    "strangers": strangers,
}
IN_ONE_PROCESS = {"command killed", "command paused", "full disk", "clock jump"}
BEGAN = time.monotonic()


@contextmanager
def small_disk(path: Path) -> Iterator[Path]:
    """A disk in memory that can be filled without harm."""
    path.mkdir()
    run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(path))
    try:
        yield path
    finally:
        run("umount", "-l", str(path))


def make_data(folder: Path) -> None:
    lines = [f"{i % 2} {i + 1}:1" for i in range(COUNTED_ROWS)]
    (folder / "counted.svm").write_text("\n".join(lines) + "\n")
    for arguments in (
        ["prepare", "counted.svm", "--format=libsvm", f"--features={COUNTED_ROWS}", "--out=counted"],
        ["generate", "clicks", "--rows=20000", "--features=100000", "--out=clicks"],
        ["generate", "images", "--rows=5000", "--size=14", "--channels=1", "--classes=10", "--out=images"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "paceline", *arguments], cwd=folder, capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(f"error: {' '.join(arguments)}\n{done.stderr}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="a part of the runs' names")
    parser.add_argument("--write", action="store_true", help="keep the table under benchmarks/results/")
    options = parser.parse_args()
    exit_on_signals()
    until = time.monotonic() + 60 * options.minutes
    faults: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    violations: list[str] = []
    with tempfile.TemporaryDirectory(prefix="plb") as folder:
        Path(folder, "sitecustomize.py").write_text(CLOCK)
        os.environ["PYTHONPATH"] = os.pathsep.join((folder, str(Path(__file__).parent.parent / "src")))
        os.environ["SOAK_CLOCK"] = str(Path(folder, "clock"))
        with lab(HOSTS, BANDWIDTH) as (hosts, env), small_disk(hosts.folder / "disk") as disk:
            make_data(hosts.folder)
            soak = Soak(hosts, env, disk, Path(folder, "clock"), random.Random(options.seed))
            names = [name for name in SCENARIOS if options.only in name]
            while time.monotonic() < until:
                name = soak.chance.choice(names)
                disturbed = Disturbed(soak, name, SCENARIOS[name])
                found = disturbed.to_its_end(until)
                faults.update(disturbed.faults)
                runs[name] += 1
                violations += [f"{name}: {what}, after {', '.join(disturbed.faults)}" for what in found]
                say({"run": name, "faults": len(disturbed.faults), "violations": found})
                if found:
                    print(disturbed.log.read_text(errors="replace")[-4000:], file=sys.stderr)
    table = markdown(options.minutes, options.seed, runs, faults, violations)
    print(table)
    if options.write:
        (Path(__file__).parent / "results" / f"{datetime.now(UTC):%Y-%m-%d}-soak.md").write_text(table)
    sys.exit(bool(violations))


def markdown(minutes: float, seed: int, runs: Counter[str], faults: Counter[str], violations: list[str]) -> str:
    lines = [
        f"# Soak, {datetime.now(UTC):%Y-%m-%d}",
        "",
        f"{machine()}. `python benchmarks/soak.py --minutes {minutes:g} --seed {seed}`: {runs.total()} runs, "
        f"{faults.total()} faults, {len(violations)} violations.",
        "",
        "| run | times | | fault | times |",
        "|---|---|---|---|---|",
    ]
    left, right = sorted(runs.items()), sorted(faults.items())
    for i in range(max(len(left), len(right))):
        run_cells = f"{left[i][0]} | {left[i][1]}" if i < len(left) else " | "
        fault_cells = f"{right[i][0]} | {right[i][1]}" if i < len(right) else " | "
        lines.append(f"| {run_cells} | | {fault_cells} |")
    return "\n".join([*lines, "", *(f"- violated: {what}" for what in violations)]).rstrip() + "\n"


if __name__ == "__main__":
    main()
