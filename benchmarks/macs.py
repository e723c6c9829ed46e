"""What does a MAC per frame cost? The figures of docs/decisions/0018.

    python benchmarks/macs.py codes                          microseconds per frame of 1 KB, 12 KB and 600 KB
    python benchmarks/macs.py cluster [--rounds 5] [--batch-size 1000] [--folder DATA]    rows per second over Ray

`codes` computes each MAC once per frame; a frame needs two, one on each side. `cluster` trains with two workers and a
shard on this machine, async: without protection, with MACs and with TLS, in turns. Prints one table per sub-command.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from cluster import SECONDS, exit_on_signals, make_data, running_ray, say, train
from embedded import machine
from paceline.wire.macs import Mac

KEY = bytes(range(32))
HEADER = bytes(16)
SENT = Mac(KEY)
SIZES = {"1 KB": 1_000, "12 KB": 12_000, "600 KB": 600_000}
# Enough for a median on a busy machine.
ROUNDS_OF_CODES = 9
BYTES_PER_ROUND = 8_000_000
CASES: dict[str, list[str]] = {
    "neither": ["wire.mac=never"],
    "`wire.mac=always`": ["wire.mac=always"],
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
    """The median over a few rounds."""
    body, count = bytes(size), max(1, BYTES_PER_ROUND // size)
    code(body)
    rounds = []
    for _ in range(ROUNDS_OF_CODES):
        began = time.perf_counter()
        for _ in range(count):
            code(body)
        rounds.append((time.perf_counter() - began) / count * 1e6)
    return statistics.median(rounds)


def measure_codes() -> None:
    print(f"{machine()}. Microseconds per MAC, medians of {ROUNDS_OF_CODES} rounds.\n")
    print(f"| | {' | '.join(SIZES)} | GB/s at 600 KB |\n|---|{'---|' * (len(SIZES) + 1)}")
    for name, code in CODES.items():
        try:
            times = [microseconds(code, size) for size in SIZES.values()]
        except ModuleNotFoundError as error:
            print(f"left out: {name} ({error})")
            continue
        rate = SIZES["600 KB"] / times[-1] / 1e3
        print(f"| {name} | {' | '.join(f'{one:.1f}' for one in times)} | {rate:.1f} |")


def measure_cluster(folder: Path, rows: int, rounds: int, batch_size: int) -> None:
    exit_on_signals()
    data = make_data(folder.resolve(), rows)
    rates: dict[str, list[float]] = {name: [] for name in CASES}
    with running_ray() as (address, env):
        flags = {"pace": "async", "batch_size": batch_size, "address": address}
        train(data, {**flags, "steps": 10}, (), env)  # compiles everything
        for number in range(rounds):
            # Each case is first equally often.
            names = list(CASES)[number % len(CASES) :] + list(CASES)[: number % len(CASES)]
            for name in names:
                result = train(data, {**flags, "seconds": SECONDS}, CASES[name], env)
                rates[name].append(result["rows_per_second"])
                say({"case": name, "rows_per_second": round(result["rows_per_second"])})
    plain = statistics.median(rates["neither"])
    print(f"\n{machine()}. Async, batch {batch_size:,}, {SECONDS:g} s per measurement, medians of {rounds} rounds.\n")
    print("| | rows/s | least to most | cost |\n|---|---|---|---|")
    for name, found in rates.items():
        median = statistics.median(found)
        print(f"| {name} | {median:,.0f} | {min(found):,.0f} to {max(found):,.0f} | {1 - median / plain:.1%} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["codes", "cluster"])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5, help="of `cluster`")
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--folder", type=Path, help="where the data is kept; default: a temporary folder")
    arguments = parser.parse_args()
    if arguments.what == "codes":
        measure_codes()
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        measure_cluster(folder, arguments.rows, arguments.rounds, arguments.batch_size)


if __name__ == "__main__":
    main()
