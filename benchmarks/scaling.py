"""How do rate and loss change from 1 worker to as many as there are cores?

    python benchmarks/scaling.py [--rows 4000000] [--skew criteo] [--workers 1 2 4 8 16] [--rounds 3] [--seconds 4]
                                 [--data DATASET] [--epochs 4] [--only PATTERN] [--lines FILE] [--write]

For every case, each number of workers is measured in turn, `--rounds` times, each in a process of its own. What the
machine can do is measured in the same rounds: as many independent processes as the most workers, each with one worker
pinned to a core, at the same settings. Their total is the ceiling, because they share caches and memory but no
parameters. Rates are those of runs that train for `--seconds`: all of them, also the independent ones, open the data
once in that time. Over Ray the ceiling is not measured; cases name their shards. The test loss, after `--epochs`,
is reported beside each rate: a run that is faster and learns worse is not faster. It is measured in the first round.

Without `--workers`, numbers of workers are powers of two up to the cores of the machine. Prints one JSON line per
measurement, then a table. `--write` keeps the table and a plot under benchmarks/results/. With `--lines`, measurements
are kept in a file, and those that are there are not repeated, so that a long run can be made in pieces.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from embedded import FEATURES, HERE, machine
from paceline.data.limits import SKEW_NAMES, SkewName
from paceline.machine import num_cores

READY_SECONDS = 120.0
REQUIRED_WORKERS = 16


class Case(NamedTuple):
    """Flags of `train`, shards for each number of workers over Ray, and what is required: the least share of the
    ceiling with `REQUIRED_WORKERS`, or the least rate with the most workers that `shards` names. Rows are generated
    with `features`.
    """

    flags: dict[str, Any]
    least_share: float = 0.0
    least_rate: float = 0.0
    shards: dict[int, int] | None = None
    features: int = FEATURES


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
    "FM, 16 factors, async, batch 1, AdaGrad": Case(
        {
            **ASYNC,
            "batch_size": 1,
            "optimizer": "adagrad",
            "model": "fm",
            "dim": 16,
            "settings": ["factors.row_wise=true"],
        },
        0.8,
        features=5_000_000,
    ),
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


def train(data: str, flags: dict[str, Any], seconds: float, epochs: int, ready: str = "") -> Measured:
    """Train in this process, once for the loss and for some seconds for the rate. With `ready` only for the rate, and
    together with other processes.
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
        elif epochs:
            loss = paceline.train(data=data, run=f"{folder}/loss", epochs=epochs, **settings).result["test"]["loss"]
        timed = paceline.train(data=data, run=f"{folder}/rate", seconds=seconds, **settings)
        return Measured(timed.result["rows_per_second"], loss)


def start(data: str, flags: dict[str, Any], seconds: float, epochs: int, ready: str = "",
          core: int | None = None) -> subprocess.Popen[str]:  # fmt: skip
    pinned = [] if core is None else ["taskset", "-c", str(core)]
    command = [*pinned, sys.executable, __file__, "--measure", json.dumps([data, flags, seconds, epochs, ready])]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def collect(process: subprocess.Popen[str]) -> Measured:
    out, _ = process.communicate()
    if process.returncode:
        sys.exit("error: a measurement failed")
    return Measured(*json.loads(out.splitlines()[-1]))


def ceiling(data: str, flags: dict[str, Any], seconds: float, count: int) -> Measured:
    """The total of `count` independent processes of one worker each, one per core."""
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as ready:
        one = {**flags, "workers": 1}
        processes = [start(data, one, seconds, 0, ready, cores[i % len(cores)]) for i in range(count)]
        while len(list(Path(ready).iterdir())) < count:
            if any(process.poll() is not None for process in processes):
                sys.exit("error: a measurement failed")
            time.sleep(0.01)
        Path(ready, "go").touch()
        found = [collect(process) for process in processes]
    return Measured(sum(one.rate for one in found), 0.0)


class Lines:
    """Measurements as JSON lines, printed and kept in a file if there is one."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._before = [json.loads(line) for line in path.read_text().splitlines()] if path and path.exists() else []

    def taken(self, case: str, who: str, number: int) -> Measured | None:
        """What was measured of a case in round `number` before."""
        own = [line for line in self._before if (line["case"], line["workers"]) == (case, who)]
        return Measured(own[number]["rows_per_second"], own[number]["loss"]) if number < len(own) else None

    def keep(self, case: str, who: str, measured: Measured) -> None:
        line = {"case": case, "workers": who, "rows_per_second": round(measured.rate), "loss": round(measured.loss, 5)}
        print(json.dumps(line), flush=True)
        if self._path:
            with self._path.open("a") as out:
                print(json.dumps(line), file=out)


def measure_case(name: str, data: str, arguments: argparse.Namespace, lines: Lines) -> dict[str, list[Measured]]:
    """All measurements of a case, by the number of workers as text, and "independent"."""
    case, seconds, most = CASES[name], arguments.seconds, max(arguments.workers)
    counts = [w for w in arguments.workers if case.shards is None or w in case.shards]
    whos = [*map(str, counts), *(["independent"] if case.shards is None and most > 1 else [])]
    found: dict[str, list[Measured]] = {who: [] for who in whos}
    for number in range(arguments.rounds):
        for who in whos:
            if (measured := lines.taken(name, who, number)) is None:
                if who == "independent":
                    measured = ceiling(data, case.flags, seconds, most)
                else:
                    shards = {} if case.shards is None else {"shards": case.shards[int(who)]}
                    # The first run also compiles.
                    epochs = 0 if number else arguments.epochs
                    measured = collect(start(data, {**case.flags, "workers": int(who), **shards}, seconds, epochs))
                lines.keep(name, who, measured)
            found[who].append(measured)
    return found


def table(found: dict[str, dict[str, list[Measured]]], workers: list[int]) -> str:
    """Millions of rows per second and test loss, medians over the rounds."""
    heads = [f"{count} worker{'s' * (count > 1)}" for count in workers]
    text = "| case | " + " | ".join(heads) + " | independent | share | required | loss by loss of 1 worker |\n"
    text += "|---" * (len(workers) + 5) + "|\n"
    for name, measured in found.items():
        cells = [cell(measured.get(str(count))) for count in [*workers, "independent"]]
        count = max((who for who in measured if who.isdigit()), key=int)
        most = rate(measured[count])
        share = share_of(measured[count], measured.get("independent", []))
        required = requirement(CASES[name], int(count), share, most)
        losses = losses_of(measured)
        worse = f"{losses[count] / losses['1']:.3f}" if {count, "1"} <= losses.keys() else ""
        text += f"| {name} | " + " | ".join(cells) + f" | {f'{share:.2f}' if share else ''} | {required} | {worse} |\n"
    return text


def share_of(most: list[Measured], independent: list[Measured]) -> float:
    """What one run reaches of what independent processes do, the median over rounds; 0 if they were not measured."""
    return statistics.median(a.rate / b.rate for a, b in zip(most, independent, strict=True)) if independent else 0.0


def losses_of(measured: dict[str, list[Measured]]) -> dict[str, float]:
    """The test loss by the number of workers, where it was measured."""
    return {who: found[0].loss for who, found in measured.items() if found[0].loss}


def requirement(case: Case, workers: int, share: float, most: float) -> str:
    """What is required of a case, and whether it holds if there were as many workers as it is required for."""
    if not case.least_share and not case.least_rate:
        return ""
    needed = max(case.shards) if case.shards else REQUIRED_WORKERS
    asked = f"≥ {case.least_share}" if case.least_share else f"≥ {case.least_rate / 1e6:.0f} M/s"
    if workers < needed:
        return f"{asked} with {needed} workers: not measured"
    held = share >= case.least_share and most >= case.least_rate
    return f"{asked}, {'holds' if held else '**falls short**'}"


def rate(measured: list[Measured]) -> float:
    return statistics.median(one.rate for one in measured)


def cell(measured: list[Measured] | None) -> str:
    if not measured:
        return ""
    loss = measured[0].loss
    return f"{rate(measured) / 1e6:.2f}" + (f" ({loss:.4f})" if loss else "")


def generated(folder: Path, rows: int, features: int, skew: SkewName) -> Path:
    """Generated rows, made if they are not there."""
    from paceline.data.synthetic import generate_clicks

    data = folder / f"clicks-{rows}-{features}-{skew}"
    if not data.exists():
        generate_clicks(data, rows=rows, features=features, test_rows=rows // 40, seed=0, skew=skew,
                        progress=lambda _: None)  # fmt: skip
    return data


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
    powers = [1 << power for power in range(num_cores().bit_length())]
    parser.add_argument("--workers", type=int, nargs="+", default=powers)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="how long a run for the rate trains")
    parser.add_argument(
        "--epochs", type=int, default=4, help="how long a run for the loss trains, which also compiles; 0: only rates"
    )
    parser.add_argument("--data", type=Path, help="a dataset to measure with instead of generated rows")
    parser.add_argument("--lines", type=Path, help="where measurements are kept; those that are there are used again")
    parser.add_argument("--only", default="", help="measure the cases whose names this regular expression finds")
    parser.add_argument("--folder", type=Path, help="where the data is kept; default: a temporary folder")
    parser.add_argument("--write", action="store_true", help="keep table and plot under benchmarks/results/")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(train(*json.loads(arguments.measure))))
        return
    chosen = {name: case for name, case in CASES.items() if re.search(arguments.only, name)}
    lines = Lines(arguments.lines)
    found = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        for name, case in chosen.items():
            data = arguments.data or generated(folder, arguments.rows, case.features, arguments.skew)
            found[name] = measure_case(name, str(data), arguments, lines)
    rows = (
        f"Rows of {arguments.data.name}" if arguments.data else f"{arguments.rows:,} click rows, skew {arguments.skew}"
    )
    head = (
        f"# Rate and loss by workers, {datetime.now(UTC):%Y-%m-%d}\n\n{machine()}. {rows}, {FEATURES:,} features "
        f"(5,000,000 for factorization machines), medians of {arguments.rounds} rounds; "
        f"`python benchmarks/scaling.py`. Millions of rows per second over {arguments.seconds:g} seconds, and the "
        f"test loss after {arguments.epochs} epochs in brackets.\n\n"
    )
    text = head + table(found, arguments.workers)
    print(text)
    if arguments.write:
        out = (
            HERE
            / "results"
            / f"{datetime.now(UTC):%Y-%m-%d}-scaling-{arguments.data.name if arguments.data else arguments.skew}.md"
        )
        out.write_text(text)
        draw(found, out.with_suffix(".svg"))


if __name__ == "__main__":
    main()
