"""How much does it cost to record where the time of a run goes?

    python benchmarks/recording.py [--seconds 30] [--write]

One run per case, embedded and over a running Ray. Workers use their meters for 37 ms, do without for 37 ms, and so on:
the speed of the machine varies by more than the cost of recording within seconds, but not within a tenth of a second.
The figure is the median loss in rows per second of turns with meters, compared with neighbouring turns without, and its
95 % interval. A second figure is the processor time of what is recorded once per second, as a share of the machine's.
Prints one JSON line per case, then a table; `--write` keeps it under benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from cluster import environment, make_data, running_ray, say, session, wait_for
from embedded import FEATURES, machine
from hosts import exit_on_signals
from paceline.machine import num_cores
from plants import TURN_SECONDS

HERE = Path(__file__).parent
AT_MOST = 0.02
CASES: dict[str, dict[str, Any]] = {
    "embedded, async, batch 1": {"engine": "local", "pace": "async", "batch_size": 1},
    "embedded, async, batch 1,000": {"engine": "local", "pace": "async", "batch_size": 1000},
    "embedded, sync, batch 1,000": {"engine": "local", "pace": "sync", "batch_size": 1000},
    "Ray, async, batch 100": {"engine": "ray", "pace": "async", "batch_size": 100},
    "Ray, async, batch 1,000": {"engine": "ray", "pace": "async", "batch_size": 1000},
    "Ray, sync, batch 1,000": {"engine": "ray", "pace": "sync", "batch_size": 1000},
}


def measure(
    name: str, data: Path, seconds: float, flags: dict[str, Any], env: dict[str, str], turns: Path
) -> dict[str, Any]:
    """One training command whose roles record in turns and leave their figures in a folder (see plants.py)."""
    for path in turns.iterdir():
        path.unlink()
    with tempfile.TemporaryDirectory(prefix="plb") as folder:
        run, log = Path(folder, "run"), Path(folder, "log")
        asked = {"data": data, "run": run, "workers": 2, "optimizer": "sgd", "learning_rate": 0.02,
                 "checkpoint_every": 0, "seconds": seconds, **flags}  # fmt: skip
        words = [sys.executable, str(HERE / "plants.py"), "by_turns", "train"]
        for flag, value in asked.items():
            words += [f"--{flag.replace('_', '-')}", str(value)]
        with log.open("wb") as out, session(words, environment(env), stdout=out, stderr=out) as process:
            wait_for(process, log)
        result = json.loads((run / "result.json").read_text())
        left = [json.loads(path.read_text()) for path in turns.glob("*.json")]
    costs = np.array([cost for role in left for worker in role["turns"] for cost in costs_of(worker)])
    draws = np.random.default_rng(0).choice(costs, (2000, len(costs)))
    low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
    probing = sum(role["probing"] for role in left) / result["train_seconds"] / num_cores()
    cost = float(np.median(costs))
    return {"case": name, "rows_per_second": round(result["rows_per_second"]), "pairs": len(costs),
            "cost": round(cost, 4), "low": round(float(low), 4), "high": round(float(high), 4),
            "probing": round(probing, 4), "holds": cost + probing < AT_MOST}  # fmt: skip


def costs_of(turns: list[list[float]]) -> list[float]:
    """What each turn with meters loses in rows per second, compared with neighbours without. Leaves out the first and
    last turns, and those that a pause or a single long step cut.
    """
    rates = [(bool(on), rows / seconds if seconds > TURN_SECONDS / 2 else None) for on, rows, seconds in turns]
    costs = []
    for (_, before), (on, rate), (_, after) in zip(rates[1:-3], rates[2:-2], rates[3:-1], strict=True):
        if on and rate and before and after:
            costs.append(1 - rate / ((before + after) / 2))
    return costs


def markdown(lines: list[dict[str, Any]], rows: int, seconds: float) -> str:
    out = (
        f"# What recording costs, {datetime.now(UTC):%Y-%m-%d}\n\n"
        f"{machine()}. {rows:,} click rows, {FEATURES:,} features, 2 workers (and a shard over Ray), {seconds:g} "
        f"seconds per run, in turns of {TURN_SECONDS * 1000:g} ms with meters and without. "
        f"`python benchmarks/recording.py`.\n\n"
        f"| case | rows/s | turns compared | meters cost | 95 % interval | once per second | required | holds |\n"
        f"|---|---|---|---|---|---|---|---|\n"
    )
    for line in lines:
        out += (
            f"| {line['case']} | {line['rows_per_second']:,} | {line['pairs']} | {line['cost']:.2%} | "
            f"{line['low']:.2%} to {line['high']:.2%} | {line['probing']:.2%} | < {AT_MOST:.0%} | "
            f"{'yes' if line['holds'] else '**no**'} |\n"
        )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=30, help="training time per case")
    parser.add_argument("--folder", type=Path, help="where data is kept")
    parser.add_argument("--write", action="store_true", help="keep the table under benchmarks/results/")
    arguments = parser.parse_args()
    exit_on_signals()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    with ExitStack() as stack:
        temporary, turns = (Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="plb"))) for _ in range(2))
        # Before Ray starts, which passes it on to the roles.
        os.environ["PACELINE_TURNS"] = str(turns)
        address, env = stack.enter_context(running_ray())
        folder = arguments.folder or temporary
        folder.mkdir(parents=True, exist_ok=True)
        data = make_data(folder.resolve(), arguments.rows)
        lines = []
        for name, case in CASES.items():
            flags = case | ({"address": address} if case["engine"] == "ray" else {})
            lines.append(measure(name, data, arguments.seconds, flags, env, turns))
            say(lines[-1])
    table = markdown(lines, arguments.rows, arguments.seconds)
    print(table)
    if arguments.write:
        (HERE / "results" / f"{datetime.now(UTC):%Y-%m-%d}-recording.md").write_text(table)


if __name__ == "__main__":
    main()
