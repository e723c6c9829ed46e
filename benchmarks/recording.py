"""What does it cost that every run records where its time goes?

    python benchmarks/recording.py [--rounds 10] [--write]

The same training with and without recording, by turns, which of them first by turns too: embedded and over a running
Ray. The machine's speed moves more within seconds than recording costs, so the figure is the median of the ratios of
neighbours, beside it the middle half of them. Prints a JSON line a measurement, then a table; `--write` keeps it under
benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cluster import environment, make_data, running_ray, say, session, wait_for
from embedded import FEATURES, machine
from hosts import exit_on_signals

HERE = Path(__file__).parent
SECONDS = 3.0
AT_MOST = 0.02
CASES: dict[str, dict[str, Any]] = {
    "embedded, async, batch 1": {"engine": "local", "pace": "async", "batch_size": 1},
    "embedded, async, batch 1,000": {"engine": "local", "pace": "async", "batch_size": 1000},
    "embedded, sync, batch 1,000": {"engine": "local", "pace": "sync", "batch_size": 1000},
    "Ray, async, batch 100": {"engine": "ray", "pace": "async", "batch_size": 100},
    "Ray, async, batch 1,000": {"engine": "ray", "pace": "async", "batch_size": 1000},
    "Ray, sync, batch 1,000": {"engine": "ray", "pace": "sync", "batch_size": 1000},
}


def rows_per_second(entry: str, data: Path, flags: dict[str, Any], env: dict[str, str]) -> float:
    """Of one training command, whose roles begin at one of plants.py's functions."""
    with tempfile.TemporaryDirectory(prefix="plb") as folder:
        run, log = Path(folder, "run"), Path(folder, "log")
        asked = {"data": data, "run": run, "workers": 2, "optimizer": "sgd", "learning_rate": 0.02,
                 "checkpoint_every": 0, "seconds": SECONDS, **flags}  # fmt: skip
        words = [sys.executable, str(HERE / "plants.py"), entry, "train"]
        for name, value in asked.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        with log.open("wb") as out, session(words, environment(env), stdout=out, stderr=out) as process:
            wait_for(process, log)
        return float(json.loads((run / "result.json").read_text())["rows_per_second"])


def measure(data: Path, rounds: int, address: str, env: dict[str, str]) -> list[dict[str, Any]]:
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in CASES}
    for turn in range(rounds):
        for name, case in CASES.items():
            flags = case | ({"address": address} if case["engine"] == "ray" else {})
            found = {}
            for entry in ("nothing", "unrecorded") if turn % 2 else ("unrecorded", "nothing"):
                found[entry] = rows_per_second(entry, data, flags, env)
            rates[name].append((found["nothing"], found["unrecorded"]))
            say({"measured": name, "recorded": round(found["nothing"]), "unrecorded": round(found["unrecorded"])})
    lines = []
    for name, pairs in rates.items():
        costs = [1 - recorded / unrecorded for recorded, unrecorded in pairs]
        low, cost, high = statistics.quantiles(costs, n=4)
        lines.append({"case": name, "rows_per_second": round(statistics.median(pair[0] for pair in pairs)),
                      "cost": round(cost, 4), "low": round(low, 4), "high": round(high, 4),
                      "holds": cost < AT_MOST})  # fmt: skip
    return lines


def markdown(lines: list[dict[str, Any]], rows: int, rounds: int) -> str:
    out = (
        f"# What recording costs, {datetime.now(UTC):%Y-%m-%d}\n\n"
        f"{machine()}. {rows:,} click rows, {FEATURES:,} features, 2 workers (and a shard over Ray), {SECONDS:g} "
        f"seconds a run, {rounds} pairs of runs with and without recording. `python benchmarks/recording.py`.\n\n"
        f"| case | rows/s, recorded | recording costs | middle half of the pairs | asked for | holds |\n"
        f"|---|---|---|---|---|---|\n"
    )
    for line in lines:
        out += (
            f"| {line['case']} | {line['rows_per_second']:,} | {line['cost']:.1%} | {line['low']:.1%} to "
            f"{line['high']:.1%} | < {AT_MOST:.0%} | {'yes' if line['holds'] else '**no**'} |\n"
        )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--folder", type=Path, help="where data is kept")
    parser.add_argument("--write", action="store_true", help="keep the table under benchmarks/results/")
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        sys.exit(f"error: `rounds` is {arguments.rounds}; it is 2 or more\nhint: one pair says nothing of their spread")
    exit_on_signals()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory() as temporary, running_ray() as (address, env):
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        data = make_data(folder.resolve(), arguments.rows)
        lines = measure(data, arguments.rounds, address, env)
    for line in lines:
        say(line)
    table = markdown(lines, arguments.rows, arguments.rounds)
    print(table)
    if arguments.write:
        (HERE / "results" / f"{datetime.now(UTC):%Y-%m-%d}-recording.md").write_text(table)


if __name__ == "__main__":
    main()
