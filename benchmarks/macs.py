"""What does a MAC per frame cost? The figures of docs/decisions/0018.

    python benchmarks/macs.py codes                          microseconds per frame of 1 KB, 12 KB and 600 KB
    python benchmarks/macs.py cluster [--rounds 5] [--batch-size 1000] [--folder DATA]    rows per second over Ray
    python benchmarks/macs.py hosts [--bandwidth 1.8Gbit] [...]    the same between three network namespaces (as root)

`codes` computes each MAC once per frame; a frame needs two, one on each side. `cluster` trains with two workers and a
shard on this machine, async: without protection, with MACs and with TLS, in turns. `hosts` gives each role a host.
Prints one table per sub-command.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

from cluster import (
    RAY_PORT,
    SECONDS,
    environment,
    lab,
    make_data,
    running_ray,
    say,
    session,
    train_command,
    wait_for,
)
from embedded import machine
from hosts import exit_on_signals
from paceline.wire.macs import Mac

KEY = bytes(range(32))
HEADER = bytes(16)
SENT = Mac(KEY)
STARTS_SECONDS = 1.5
SIZES = {"1 KB": 1_000, "12 KB": 12_000, "600 KB": 600_000}
# Enough for a good one on a busy machine.
ROUNDS_OF_CODES = 9
BYTES_PER_ROUND = 8_000_000
CASES: dict[str, list[str]] = {
    "neither": [],
    "`wire.mac=true`": ["wire.mac=true"],
    "`wire.tls=true`": ["wire.tls=true"],
}

Code = Callable[[bytes], bytes]


def keyed_hash(start: Callable[[], Any]) -> Code:
    """A MAC from an object with `update` and `digest`."""

    def code(body: bytes) -> bytes:
        mac = start()
        mac.update(HEADER)
        mac.update(body)
        return bytes(mac.digest()[:16])

    return code


def poly1305(body: bytes) -> bytes:
    """With a key per frame, which a real one must derive."""
    mac = import_module("cryptography.hazmat.primitives.poly1305").Poly1305(hashlib.sha256(HEADER).digest())
    mac.update(HEADER)
    mac.update(body)
    return bytes(mac.finalize())


def gmac(body: bytes) -> bytes:
    """As `Mac` computes it, for a frame in two parts."""
    return SENT.next([HEADER, body], "")


CODES: dict[str, Code] = {
    "HMAC-SHA256": keyed_hash(hmac.new(KEY, digestmod="sha256").copy),
    "BLAKE2b": keyed_hash(lambda: hashlib.blake2b(key=KEY, digest_size=16)),
    "BLAKE2s": keyed_hash(lambda: hashlib.blake2s(key=KEY, digest_size=16)),
    "Poly1305 (`cryptography`)": poly1305,
    "AES-GCM without content (`wire.mac`)": gmac,
}


def microseconds(code: Code, size: int) -> float:
    """The best of a few rounds: what else the machine does only adds to it."""
    body, count = bytes(size), max(1, BYTES_PER_ROUND // size)
    code(body)
    rounds = []
    for _ in range(ROUNDS_OF_CODES):
        began = time.perf_counter()
        for _ in range(count):
            code(body)
        rounds.append((time.perf_counter() - began) / count * 1e6)
    return min(rounds)


def measure_codes() -> None:
    print(f"{machine()}. Microseconds per MAC, best of {ROUNDS_OF_CODES} rounds.\n")
    print(f"| | {' | '.join(SIZES)} | GB/s at 600 KB |\n|---|{'---|' * (len(SIZES) + 1)}")
    for name, code in CODES.items():
        try:
            times = [microseconds(code, size) for size in SIZES.values()]
        except ModuleNotFoundError as error:
            print(f"left out: {name} ({error})")
            continue
        rate = SIZES["600 KB"] / times[-1] / 1e3
        print(f"| {name} | {' | '.join(f'{one:.1f}' for one in times)} | {rate:.1f} |")


Start = Callable[[list[str], Any], Any]
"""Starts a command whose output goes into a file, as a context."""


def train(data: Path, flags: dict[str, Any], settings: list[str], start: Start) -> tuple[float, float]:
    """Rows per second; and microseconds of processor time per row, of workers and shard, spinning not counted.

    The second figure depends less on what else the machine does.
    """
    with tempfile.TemporaryDirectory(prefix="plb") as folder:
        run, log = Path(folder, "run"), Path(folder, "log")
        command = train_command(data, run, {"workers": 2, "shards": 1, **flags}, settings)
        with log.open("wb") as out, start(command, out) as process:
            wait_for(process, log)
        rate = json.loads((run / "result.json").read_text())["rows_per_second"]
        recorded = [
            [json.loads(line) for line in (run / "telemetry" / f"{name}.jsonl").read_text().splitlines()]
            for name in ("workers", "shards")
        ]
    # The first chunks contain the start.
    workers, shards = ([chunk for chunk in chunks if chunk["time"] > STARTS_SECONDS] for chunks in recorded)
    rows = sum(chunk["rows"] for chunk in workers)
    per_second = rows / (sum(chunk["seconds"] for chunk in workers) / 2)
    return rate, (2 * busy_share(workers) + busy_share(shards)) / per_second * 1e6


def busy_share(chunks: list[dict[str, Any]]) -> float:
    """Processor seconds per second of a role."""
    busy = sum(chunk["processor"] - chunk.get("looked", 0.0) for chunk in chunks)
    return float(busy / sum(chunk["seconds"] for chunk in chunks))


@contextmanager
def one_machine() -> Iterator[tuple[str, Start]]:
    """The address of a Ray on this machine, and how a command is started there."""
    with running_ray() as (address, env):
        yield address, lambda command, out: session(command, environment(env), stdout=out, stderr=out)


@contextmanager
def three_hosts(bandwidth: str) -> Iterator[tuple[str, Start]]:
    """The same for a Ray of three hosts with one processor each."""
    with lab(3, bandwidth) as (hosts, env):

        def start(command: list[str], out: Any) -> Any:
            return nullcontext(hosts.start(0, command, env=environment(env), stdout=out, stderr=out))

        yield f"{hosts.addresses[0]}:{RAY_PORT}", start


def measure_cluster(cluster: Any, data: Path, rounds: int, batch_size: int) -> None:
    exit_on_signals()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in CASES}
    with cluster as (address, start):
        flags = {"pace": "async", "batch_size": batch_size, "address": address, "seconds": SECONDS}
        train(data, flags, [], start)  # compiles everything
        for number in range(rounds):
            # Each case is first equally often.
            names = list(CASES)[number % len(CASES) :] + list(CASES)[: number % len(CASES)]
            for name in names:
                found[name].append(train(data, flags, CASES[name], start))
                rate, processor = found[name][-1]
                say({"case": name, "rows_per_second": round(rate), "processor_us_per_row": round(processor, 4)})
    print(f"\n{machine()}. Async, batch {batch_size:,}, {SECONDS:g} s per measurement, medians of {rounds} rounds.\n")
    print("| | rows/s | most rows/s | processor time per row, µs | least, µs |\n|---|---|---|---|---|")
    for name, pairs in found.items():
        rates, times = zip(*pairs, strict=True)
        print(f"| {name} | {statistics.median(rates):,.0f} | {max(rates):,.0f} "
              f"| {statistics.median(times):.3f} | {min(times):.3f} |")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["codes", "cluster", "hosts"])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5, help="of `cluster`")
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--bandwidth", default="1.8Gbit", help="of each of the `hosts`, in tc's notation")
    parser.add_argument("--folder", type=Path, help="where the data is kept; default: a temporary folder")
    arguments = parser.parse_args()
    if arguments.what == "codes":
        measure_codes()
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        data = make_data(folder.resolve(), arguments.rows)
        cluster = three_hosts(arguments.bandwidth) if arguments.what == "hosts" else one_machine()
        measure_cluster(cluster, data, arguments.rounds, arguments.batch_size)


if __name__ == "__main__":
    main()
