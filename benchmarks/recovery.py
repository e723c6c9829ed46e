"""How long does a run over Ray take to recover from faults of its roles?

    python benchmarks/recovery.py [--rounds 3] [--write]

A run of two workers and two shards on a Ray of three nodes on the loopback; while it trains, a role is killed, stopped
or loses its node. Seconds are those of `recoveries` in the run's result.json: from the last sign of life of what was
lost until its replacement is ready. Prints one JSON line per measurement, then a table; `--write` keeps it under
benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from cluster import environment, ray_command, ray_token, say, session, train_command, wait_for, wait_for_ray
from embedded import machine
from hosts import exit_on_signals

ROWS, FEATURES = 200_000, 1_000_000
NODES = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
FIRST_METRICS_SECONDS = 60.0


class Fault(NamedTuple):
    """What happens to which roles, and within how many seconds they must be replaced."""

    roles: tuple[tuple[str, int], ...]
    by: signal.Signals | None
    at_most: float = 15.0


WORKER, SHARD = ("worker", 1), ("shard", 0)
FAULTS = {
    "a worker killed": Fault((WORKER,), signal.SIGKILL),
    "a shard killed": Fault((SHARD,), signal.SIGKILL),
    "a worker and a shard killed": Fault((WORKER, SHARD), signal.SIGKILL),
    "a worker stopped": Fault((WORKER,), signal.SIGSTOP),
    "a shard stopped": Fault((SHARD,), signal.SIGSTOP),
    "a worker's node lost": Fault((WORKER,), None, at_most=30.0),
}


@contextmanager
def nodes() -> Iterator[tuple[str, dict[str, str], dict[str, subprocess.Popen[Any]]]]:
    """Three Ray nodes of four processors each: the head's address, a driver's environment, the nodes by address."""
    with socket.create_server((NODES[0], 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="plb", ignore_cleanup_errors=True) as folder, ExitStack() as stack:
        env = ray_token(Path(folder))
        started = {}
        for i, ip in enumerate(NODES):
            log = Path(folder, f"log-{i}")
            head = f"{NODES[0]}:{port}" if i else None
            command = ray_command(f"{ip}:{port}", Path(folder, f"ray-{i}"), 4 if i == 0 else 2, head)
            out = stack.enter_context(log.open("wb"))
            started[ip] = stack.enter_context(session(command, environment(env), stdout=out, stderr=out))
            wait_for_ray(started[ip], log)
        yield f"{NODES[0]}:{port}", env, started


def recover_from(fault: Fault, data: Path, pace: str) -> list[dict[str, Any]]:
    """Train, cause the fault, and let the run end; return its recoveries."""
    with tempfile.TemporaryDirectory(prefix="plb") as folder, nodes() as (address, env, by_address):
        run, log = Path(folder, "run"), Path(folder, "log")
        flags = {"address": address, "workers": 2, "shards": 2, "pace": pace, "batch_size": 1000, "epochs": 60,
                 "test_every": 1_000_000}  # fmt: skip
        # The last --checkpoint-every counts.
        command = [*train_command(data, run, flags), "--checkpoint-every", "1"]
        with log.open("wb") as out, session(command, environment(env), stdout=out, stderr=out) as process:
            deadline = time.monotonic() + FIRST_METRICS_SECONDS
            while not ((run / "metrics.jsonl").exists() and (run / "metrics.jsonl").read_bytes()):
                if process.poll() is not None or time.monotonic() > deadline:
                    sys.exit(f"error: the run did not begin\n{log.read_text(errors='replace')[-4000:]}")
                time.sleep(0.05)
            roles = {(role["role"], role["rank"]): role for role in json.loads((run / "roles.json").read_text())}
            for who in fault.roles:
                if fault.by is not None:
                    os.kill(roles[who]["pid"], fault.by)
            if fault.by is None:
                lose_a_node(roles, by_address)
            wait_for(process, log)
        return list(json.loads((run / "result.json").read_text())["recoveries"])


def lose_a_node(roles: dict[tuple[str, int], dict[str, Any]], by_address: dict[str, subprocess.Popen[Any]]) -> None:
    """End every process of a node that has a role, but not Ray's head or the run's coordinator."""
    for ip in NODES[1:]:
        if any(role["node"].endswith(ip) or ip in str(role["address"]) for role in roles.values()):
            lead = by_address[ip].pid
            for pid in [int(name) for name in os.listdir("/proc") if name.isdecimal()]:
                try:
                    if os.getsid(pid) == lead:
                        os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            return
    sys.exit("error: every role is on the head's node; none could be lost")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="keep the table under benchmarks/results/")
    arguments = parser.parse_args()
    exit_on_signals()
    from paceline.data.synthetic import generate_clicks

    table = (
        f"# Recovery over Ray, {datetime.now(UTC):%Y-%m-%d}\n\n"
        f"{machine()}. 2 workers and 2 shards on three Ray nodes on the loopback, {ROWS:,} click rows, {FEATURES:,} "
        f"features, batch 1,000, {arguments.rounds} rounds of each fault, alternating between async and sync. Seconds "
        f"from the last sign of life of what was lost until its replacement is ready. "
        f"`python benchmarks/recovery.py`.\n\n"
        f"| what happened | recoveries | median, s | longest, s | required, s | holds |\n|---|---|---|---|---|---|\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "clicks")
        generate_clicks(data, rows=ROWS, features=FEATURES, test_rows=ROWS // 10, seed=0, progress=lambda _: None)
        for name, fault in FAULTS.items():
            seconds: list[float] = []
            for turn in range(arguments.rounds):
                recoveries = recover_from(fault, data, ("async", "sync")[turn % 2])
                say({"measured": name, "recoveries": recoveries})
                seconds += [recovery["seconds"] for recovery in recoveries]
            if len(seconds) < arguments.rounds:
                sys.exit(f"error: {name}: {len(seconds)} recoveries in {arguments.rounds} rounds")
            median, longest = sorted(seconds)[len(seconds) // 2], max(seconds)
            holds = "yes" if longest <= fault.at_most else "**no**"
            table += f"| {name} | {len(seconds)} | {median:.1f} | {longest:.1f} | ≤ {fault.at_most:g} | {holds} |\n"
    print(table)
    if arguments.write:
        name = f"{datetime.now(UTC):%Y-%m-%d}-recovery.md"
        (Path(__file__).parent / "results" / name).write_text(table)


if __name__ == "__main__":
    main()
