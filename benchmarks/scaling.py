"""How do rate and loss change from 1 worker to as many as there are cores?

    python benchmarks/scaling.py [--rows 4000000] [--skew criteo] [--workers 1 2 4 8 16] [--rounds 3]
                                 [--only PART_OF_A_NAME] [--write]

For every case, each number of workers is measured in turn, `--rounds` times, each in a process of its own. What the
machine can do is measured in the same rounds: as many independent processes as the most workers, each with one worker
pinned to a core, at the same settings. Their total is the ceiling, because they share caches and memory but no
parameters. Rates are those of runs that train for `SECONDS`: all of them, also the independent ones, open the data once
in that time. Over Ray the ceiling is not measured; cases name their shards. The test loss, after `EPOCHS` epochs, is
reported beside each rate: a run that is faster and learns worse is not faster.

Prints one JSON line per measurement, then a table. `--write` keeps the table and a plot under benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from embedded import FEATURES, HERE, machine
from paceline.data.limits import SKEW_NAMES

EPOCHS = 4
SECONDS = 4.0
READY_SECONDS = 120.0


class Case(NamedTuple):
    """Flags of `train`, the least share of the ceiling with the most workers, and shards for each number of workers."""

    flags: dict[str, Any]
    least_share: float = 0.0
    least_rate: float = 0.0
    shards: dict[int, int] | None = None


ASYNC, RAY = {"pace": "async"}, {"engine": "ray", "optimizer": "adagrad"}
CASES: dict[str, Case] = {
    "async, batch 1, AdaGrad": Case({**ASYNC, "batch_size": 1, "optimizer": "adagrad"}, 0.85),
    "async, batch 1, SGD": Case({**ASYNC, "batch_size": 1, "optimizer": "sgd", "learning_rate": 0.05}, 0.85),
    "async, batch 1, FTRL": Case({**ASYNC, "batch_size": 1, "optimizer": "ftrl"}),
    "async, batch 1,000, AdaGrad": Case({**ASYNC, "batch_size": 1000, "optimizer": "adagrad"}, 0.85),
    "async, batch 1,000, SGD": Case({**ASYNC, "batch_size": 1000, "optimizer": "sgd"}),
    "sync, batch 10,000, AdaGrad": Case({"pace": "sync", "batch_size": 10_000, "optimizer": "adagrad"}, 0.7),
    "sync, batch 1,000, AdaGrad": Case({"pace": "sync", "batch_size": 1000, "optimizer": "adagrad"}, 0.5),
    "sync, batch 100, AdaGrad": Case({"pace": "sync", "batch_size": 100, "optimizer": "adagrad"}, 0.25),
    "pace 8, batch 100, AdaGrad": Case({"pace": 8, "batch_size": 100, "optimizer": "adagrad"}, 0.6),
    "Ray: async, batch 100": Case({**RAY, **ASYNC, "batch_size": 100}, least_rate=5e6, shards={1: 1, 2: 1, 4: 1, 8: 2}),
    "Ray: async, batch 1,000": Case(
        {**RAY, **ASYNC, "batch_size": 1000}, least_rate=18e6, shards={1: 1, 2: 1, 4: 2, 8: 4, 11: 4}
    ),
    "Ray: async, batch 10,000": Case(
        {**RAY, **ASYNC, "batch_size": 10_000}, least_rate=23e6, shards={1: 1, 2: 1, 4: 2, 8: 4, 11: 4}
    ),
    "Ray: sync, batch 1,000": Case(
        {**RAY, "pace": "sync", "batch_size": 1000}, least_rate=10e6, shards={1: 1, 2: 1, 4: 2, 8: 4}
    ),
}


class Measured(NamedTuple):
    """One run: rows per second and test loss."""

    rate: float
    loss: float


def train(data: str, flags: dict[str, Any], ready: str = "") -> Measured:
    """Train in this process, once for the loss and once for the rate. With `ready` only for the rate, and together
    with other processes.
    """
    import paceline

    with tempfile.TemporaryDirectory() as folder:
        settings = {"checkpoint_every": 0, **flags}
        loss = 0.0
        if ready:
            Path(ready, str(os.getpid())).touch()
            deadline = time.monotonic() + READY_SECONDS
            while not Path(ready, "go").exists():
                if time.monotonic() > deadline:
                    sys.exit("error: the other processes did not start")
                time.sleep(0.001)
        else:
            loss = paceline.train(data=data, run=f"{folder}/loss", epochs=EPOCHS, **settings).result["test"]["loss"]
        timed = paceline.train(data=data, run=f"{folder}/rate", seconds=SECONDS, **settings)
        return Measured(timed.result["rows_per_second"], loss)


def start(data: str, flags: dict[str, Any], ready: str = "", core: int | None = None) -> subprocess.Popen[str]:
    pinned = [] if core is None else ["taskset", "-c", str(core)]
    command = [*pinned, sys.executable, __file__, "--measure", json.dumps([data, flags, ready])]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def collect(process: subprocess.Popen[str]) -> Measured:
    out, _ = process.communicate()
    if process.returncode:
        sys.exit("error: a measurement failed")
    return Measured(*json.loads(out.splitlines()[-1]))


def ceiling(data: str, flags: dict[str, Any], count: int) -> Measured:
    """The total of `count` independent processes of one worker each, one per core."""
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as ready:
        processes = [start(data, {**flags, "workers": 1}, ready, cores[i % len(cores)]) for i in range(count)]
        while len(list(Path(ready).iterdir())) < count:
            if any(process.poll() is not None for process in processes):
                sys.exit("error: a measurement failed")
            time.sleep(0.01)
        Path(ready, "go").touch()
        found = [collect(process) for process in processes]
    return Measured(sum(one.rate for one in found), 0.0)


def measure_case(name: str, case: Case, data: str, workers: list[int], rounds: int) -> dict[str, list[Measured]]:
    """All measurements of a case, by "1 worker", "2 workers" and so on, and "independent"."""
    found: dict[str, list[Measured]] = {}
    for _ in range(rounds):
        for count in [w for w in workers if case.shards is None or w in case.shards]:
            shards = {} if case.shards is None else {"shards": case.shards[count]}
            note(name, str(count), collect(start(data, {**case.flags, "workers": count, **shards})), found)
        if case.shards is None and max(workers) > 1:
            note(name, "independent", ceiling(data, case.flags, max(workers)), found)
    return found


def note(name: str, who: str, measured: Measured, found: dict[str, list[Measured]]) -> None:
    found.setdefault(who, []).append(measured)
    line = {"case": name, "workers": who, "rows_per_second": round(measured.rate), "loss": round(measured.loss, 5)}
    print(json.dumps(line), flush=True)


def table(found: dict[str, dict[str, list[Measured]]], workers: list[int]) -> str:
    """Millions of rows per second and test loss, medians over the rounds."""
    heads = [f"{count} worker{'s' * (count > 1)}" for count in workers]
    text = "| case | " + " | ".join(heads) + " | independent | share | required |\n"
    text += "|---" * (len(workers) + 4) + "|\n"
    for name, measured in found.items():
        cells = [cell(measured.get(str(count))) for count in [*workers, "independent"]]
        case, most = CASES[name], rate(measured[max((w for w in measured if w.isdigit()), key=int)])
        share = most / rate(measured["independent"]) if "independent" in measured else 0.0
        asked = f"≥ {case.least_share}" if case.least_share else f"≥ {case.least_rate / 1e6:.0f} M/s"
        held = share >= case.least_share and most >= case.least_rate
        judged = share if case.least_share else case.least_rate
        required = f"{asked}, {'holds' if held else '**falls short**'}" if judged else ""
        text += f"| {name} | " + " | ".join(cells) + f" | {f'{share:.2f}' if share else ''} | {required} |\n"
    return text


def rate(measured: list[Measured]) -> float:
    return statistics.median(one.rate for one in measured)


def cell(measured: list[Measured] | None) -> str:
    if not measured:
        return ""
    loss = statistics.median(one.loss for one in measured)
    return f"{rate(measured) / 1e6:.2f}" + (f" ({loss:.4f})" if loss else "")


def draw(found: dict[str, dict[str, list[Measured]]], path: Path) -> None:
    """Rates over workers, one line per case."""
    from paceline.reports.charts import Line, line_chart
    from recipes import standalone

    lines = []
    for style, (name, measured) in enumerate(found.items()):
        counts = sorted(int(who) for who in measured if who.isdigit())
        lines.append(Line(name, style, counts, [rate(measured[str(count)]) for count in counts]))
    chart = line_chart("Rows per second", lines, "workers", "rows/s", y_low=0.0)
    path.write_text(standalone(chart, "Rows per second by workers", [line.name for line in lines]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--skew", choices=SKEW_NAMES, default="log-uniform", help="how hot the hottest features are")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="measure the cases whose names contain this")
    parser.add_argument("--folder", type=Path, help="where the data is kept; default: a temporary folder")
    parser.add_argument("--write", action="store_true", help="keep table and plot under benchmarks/results/")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(train(*json.loads(arguments.measure))))
        return
    import paceline
    from paceline.data.synthetic import generate_clicks

    with tempfile.TemporaryDirectory() as temporary:
        data = (arguments.folder or Path(temporary)) / f"clicks-{arguments.rows}-{arguments.skew}"
        if not data.exists():
            generate_clicks(data, rows=arguments.rows, features=FEATURES, test_rows=arguments.rows // 40, seed=0,
                            skew=arguments.skew, progress=lambda _: None)  # fmt: skip
        chosen = {name: case for name, case in CASES.items() if arguments.only in name}
        for case in chosen.values():
            # The first run compiles.
            paceline.train(data=str(data), run=f"{temporary}/{time.time_ns()}", workers=2, steps=2, **case.flags)
        found = {
            name: measure_case(name, case, str(data), arguments.workers, arguments.rounds)
            for name, case in chosen.items()
        }
    head = (
        f"# Rate and loss by workers, {datetime.now(UTC):%Y-%m-%d}\n\n{machine()}. {arguments.rows:,} click rows "
        f"(skew {arguments.skew}), {FEATURES:,} features, medians of {arguments.rounds} rounds; "
        f"`python benchmarks/scaling.py`. Millions of rows per second over {SECONDS:g} seconds, and the "
        f"test loss after {EPOCHS} epochs in brackets.\n\n"
    )
    text = head + table(found, arguments.workers)
    print(text)
    if arguments.write:
        out = HERE / "results" / f"{datetime.now(UTC):%Y-%m-%d}-scaling-{arguments.skew}.md"
        out.write_text(text)
        draw(found, out.with_suffix(".svg"))


if __name__ == "__main__":
    main()
