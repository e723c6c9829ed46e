"""How fast does `predict` score raw rows, compared with `prepare` reading them?

    python benchmarks/raw_rows.py [--rows 400000] [--rounds 5] [--hash-bits 22]

Writes click rows as Criteo's TSV to a temporary folder (39 columns, heavy-tailed strings), trains a linear model on
some of them, and then, in turns, prepares the file and scores it into a CSV file, in one process with compiled kernels.
Both read the same bytes from the page cache. Prints the rows per second of each round, and the median ratio.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import paceline
from embedded import machine
from prepare import criteo, write

SMALL_ROWS = 20_000


def seconds_of(call: Callable[[], object]) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hash-bits", type=int, default=22)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        raw, small, data, scores = (folder / part for part in ("raw.tsv", "small.tsv", "data", "scores.csv"))
        write(raw, criteo, asked.rows)
        write(small, criteo, SMALL_ROWS)
        paceline.prepare(small, data, hash_bits=asked.hash_bits)
        run = paceline.train(data=data, run=folder / "run", epochs=1, progress=False)
        paceline.predict(run, small, scores)  # compiles
        scores.unlink()
        print(machine(), f"{asked.rows:,} rows, {raw.stat().st_size / 1e6:.0f} MB", sep="\n")
        print("| round | prepare, rows/s | predict, rows/s | ratio |", "|---|---|---|---|", sep="\n")
        ratios = []
        for number in range(1, asked.rounds + 1):
            shutil.rmtree(data)
            preparing = seconds_of(lambda: paceline.prepare(raw, data, hash_bits=asked.hash_bits, progress=False))
            scoring = seconds_of(lambda: paceline.predict(run, raw, scores))
            scores.unlink()
            ratios.append(preparing / scoring)
            speeds = asked.rows / preparing, asked.rows / scoring
            print(f"| {number} | {speeds[0]:,.0f} | {speeds[1]:,.0f} | {ratios[-1]:.2f} |", flush=True)
        print(f"median ratio: {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
