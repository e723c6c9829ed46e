"""Does a run get slower with more shards?

    python benchmarks/shards.py [--rows 4000000] [--skew criteo] [--rounds 3] [--seconds 3] [--only PART_OF_A_NAME]
                                [--folder DIR] [--write]

For every case, each number of shards is measured in turn over Ray, as long as workers and shards together do not exceed
the cores. More shards must not be slower than fewer by more than 5 %. Prints a table; `--write` keeps it under
benchmarks/results/.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from embedded import FEATURES, HERE, machine
from paceline.data.limits import SKEW_NAMES
from paceline.machine import num_cores
from scaling import RAY, collect, generated, start

LEAST = 0.95
SHARDS = (1, 2, 4, 8)
CASES: dict[str, dict[str, Any]] = {
    "async, batch 100, 8 workers": {"pace": "async", "batch_size": 100, "workers": 8},
    "async, batch 100, 2 workers": {"pace": "async", "batch_size": 100, "workers": 2},
    "async, batch 1,000, 4 workers": {"pace": "async", "batch_size": 1000, "workers": 4},
    "async, batch 1,000, 8 workers": {"pace": "async", "batch_size": 1000, "workers": 8},
    "sync, batch 1,000, 2 workers": {"pace": "sync", "batch_size": 1000, "workers": 2},
    "sync, batch 1,000, 8 workers": {"pace": "sync", "batch_size": 1000, "workers": 8},
}


def measure(data: Path, flags: dict[str, Any], rounds: int, seconds: float) -> dict[int, float]:
    """Median rows per second by number of shards."""
    counts = [count for count in SHARDS if count + flags["workers"] <= num_cores()]
    rates: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(rounds):
        for count in counts:
            run = start(str(data), {**RAY, **flags, "shards": count}, seconds, 0)
            rates[count].append(collect(run).rate)
    return {count: statistics.median(found) for count, found in rates.items()}


def row(name: str, rates: dict[int, float]) -> str:
    """One row of the table: rates, and the least ratio of a rate to the best one with fewer shards."""
    counts = sorted(rates)
    ratios = [rates[more] / max(rates[fewer] for fewer in counts if fewer < more) for more in counts[1:]]
    worst = min(ratios, default=1.0)
    cells = " | ".join(f"{rates[count] / 1e6:.2f}" if count in rates else "" for count in SHARDS)
    return f"| {name} | {cells} | {worst:.2f} | {'yes' if worst >= LEAST else '**no**'} |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--skew", choices=SKEW_NAMES, default="log-uniform", help="how hot the hottest features are")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long a run trains")
    parser.add_argument("--only", default="", help="measure the cases whose names contain this")
    parser.add_argument("--folder", type=Path, help="where the data is kept; default: a temporary folder")
    parser.add_argument("--write", action="store_true", help="keep the table under benchmarks/results/")
    arguments = parser.parse_args()
    text = (
        f"# Rows per second by shards, {datetime.now(UTC):%Y-%m-%d}\n\n{machine()}. {arguments.rows:,} click rows, "
        f"skew {arguments.skew}, {FEATURES:,} features, AdaGrad, over Ray, medians of {arguments.rounds} rounds of "
        f"{arguments.seconds:g} seconds. `python benchmarks/shards.py`. Millions of rows per second. Worst: the lowest "
        f"ratio of a rate to the best one with fewer shards; it must be at least {LEAST}.\n\n"
        f"| case | {' | '.join(f'{count} shards' for count in SHARDS)} | worst | holds |\n|---|"
        + "---|" * (len(SHARDS) + 2)
        + "\n"
    )
    with tempfile.TemporaryDirectory() as temporary:
        data = generated(arguments.folder or Path(temporary), arguments.rows, FEATURES, arguments.skew)
        for name, flags in CASES.items():
            if arguments.only in name:
                found = row(name, measure(data, flags, arguments.rounds, arguments.seconds))
                print(found, end="", flush=True)
                text += found
    print(text)
    if arguments.write:
        (HERE / "results" / f"{datetime.now(UTC):%Y-%m-%d}-shards-{arguments.skew}.md").write_text(text)


if __name__ == "__main__":
    main()
