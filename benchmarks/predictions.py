"""Does advice come true? Predicts what a change of a run would give, makes the change, and measures.

    python benchmarks/predictions.py [--rows 1000000] [--seconds 3] [--rounds 2] [--only embedded] [--write]

A pair is a run and the same run with other workers, another number of shards, another batch size or another pace. The
prediction comes from the first run alone. Each round measures every setting once, one after the other, and a pair is
compared within its round, because machines are faster in some minutes than in others. Numbers of workers follow from
the cores of the machine. Runs with small steps, and with several shards in sync, are replayed only. `paceline doctor`
comes first, unless it was run before.

Prints one JSON line per pair, then a table; `--write` keeps it under benchmarks/results/.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from cluster import environment, make_data, say, session, wait_for
from embedded import machine
from paceline.diagnosis.advice import larger_batches_gain
from paceline.diagnosis.changes import (
    Range,
    at_pace,
    gain_of,
    resized,
    world_of,
)
from paceline.diagnosis.embedded import EmbeddedSetup, embedded_gain
from paceline.diagnosis.evidence import Evidence, gather_evidence
from paceline.diagnosis.verdict import World, rate
from paceline.machine import num_cores
from paceline.run_folder import RunFolder
from paceline.telemetry.ceilings import load_ceilings

HERE = Path(__file__).parent
WITHIN = 0.2
# A change that is predicted to help must not hurt, and the other way round, if it is at least this large.
MATTERS = 0.1
REPLAY_WITHIN = 0.15
MOST_BUSY = 0.25
ATTEMPTS = 4
IMAGES = 20_000


class Case(NamedTuple):
    """The settings of a run."""

    engine: str
    pace: str
    workers: int
    shards: int
    batch_size: int
    model: str = "logistic"

    def __str__(self) -> str:
        roles = f"{self.workers} + {self.shards}" if self.engine == "ray" else f"{self.workers}"
        where = "Ray" if self.engine == "ray" else "embedded"
        pace = f"pace {self.pace}" if self.pace.isdigit() else self.pace
        model = "" if self.model == "logistic" else f"{self.model}, "
        return f"{where}, {model}{pace}, batch {self.batch_size:,}, {roles}"


def pairs(cores: int) -> Iterator[tuple[Case, Case]]:
    """The changes to try on a machine with this many cores."""
    few, many = max(2, cores // 4), max(2, cores)
    for pace, batch_size in (("async", 1), ("async", 1000), ("sync", 1000), ("sync", 100), ("4", 100)):
        one = Case("local", pace, 1, 1, batch_size)
        yield one, one._replace(workers=2)
        if cores > 2:
            yield one._replace(workers=few), one._replace(workers=many)
    one = Case("local", "sync", 1, 1, 1000)
    yield one, one._replace(pace="async")
    yield one, one._replace(pace="async", workers=many)
    all_cores = one._replace(workers=many)
    yield all_cores, all_cores._replace(pace="async")
    yield all_cores._replace(pace="async"), all_cores
    yield all_cores, all_cores._replace(batch_size=4000)
    yield all_cores._replace(pace="async"), all_cores._replace(pace="async", batch_size=4000)
    yield all_cores._replace(batch_size=100), all_cores._replace(batch_size=400)
    workers = max(2, cores // 4)
    ray = Case("ray", "async", workers, 1, 1000)
    yield ray._replace(workers=1), ray._replace(workers=2)
    yield ray, ray._replace(shards=2)
    yield ray, ray._replace(batch_size=4000)
    yield ray, ray._replace(pace="sync")
    sync = ray._replace(pace="sync", workers=2)
    yield sync, sync._replace(shards=2)
    yield sync, sync._replace(pace="async")
    yield sync, sync._replace(batch_size=4000)
    yield ray._replace(batch_size=100), ray._replace(batch_size=400)
    small = ray._replace(batch_size=100, workers=max(2, cores // 2), shards=max(1, cores // 4))
    yield small, small._replace(shards=2 * small.shards)
    if cores > 2:
        yield ray._replace(workers=2), ray._replace(workers=4)
        yield small._replace(batch_size=1000), small._replace(batch_size=1000, shards=2 * small.shards)


def replays(cores: int) -> Iterator[Case]:
    """Runs that are hard to replay: small steps, and several shards in sync."""
    for workers in (1, max(2, cores)):
        for batch_size in (10, 30):
            yield Case("local", "sync", workers, 1, batch_size)
        for pace in ("sync", "async"):
            yield Case("local", pace, workers, 1, 100, "softmax")
    yield Case("local", "sync", 1, 1, 10, "softmax")
    yield Case("ray", "sync", 1, 2, 1000)
    yield Case("ray", "sync", 2, 2, 1000)
    yield Case("ray", "sync", 2, 2, 100)
    yield Case("ray", "sync", 2, 2, 100, "softmax")


def train(case: Case, data: Path, run: Path, seconds: float) -> None:
    words = [sys.executable, "-m", "paceline", "train", "--data", str(data), "--run", str(run), "--optimizer",
             "adagrad", "--checkpoint-every", "0", "--seconds", str(seconds)]  # fmt: skip
    for name, value in case._asdict().items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    log = run.with_suffix(".log")
    with log.open("wb") as out, session(words, environment(None), stdout=out, stderr=out) as process:
        wait_for(process, log)


def measure(cases: Iterable[Case], data: dict[str, Path], folder: Path, seconds: float, rounds: int) -> None:
    """Train every case once per round, unless that was done before; again if other programs used the cores."""
    for number in range(rounds):
        for case in cases:
            run = run_of(folder, case, number)
            for attempt in range(ATTEMPTS):
                if (run / "result.json").exists() and (attempt == ATTEMPTS - 1 or used_by_others(run) < MOST_BUSY):
                    break
                shutil.rmtree(run, ignore_errors=True)
                train(case, data[case.model], run, seconds)


def data_of_models(folder: Path, rows: int) -> dict[str, Path]:
    """The data that each model trains on, kept in the folder."""
    from paceline.data.synthetic_images import generate_images

    digits = folder / "digits"
    if not digits.exists():
        generate_images(digits, rows=IMAGES, size=28, classes=10, channels=1, test_rows=100, seed=0,
                        progress=lambda _: None)  # fmt: skip
    return {"logistic": make_data(folder, rows), "softmax": digits}


def run_of(folder: Path, case: Case, number: int) -> Path:
    return folder / f"{'-'.join(map(str, case))}-{number}"


def is_there(folder: Path, case: Case, rounds: int) -> bool:
    return all((run_of(folder, case, number) / "result.json").exists() for number in range(rounds))


def used_by_others(run: Path) -> float:
    """How many cores other programs used during a run."""
    evidence = gather_evidence(RunFolder(run))
    return evidence.nodes[0].cores - evidence.topology.cores[0]


def predicted(before: Case, after: Case, evidence: Evidence) -> Range:
    """How many times faster the changed run would be, according to a run before the change."""
    if before.engine == "local":
        return embedded_gain(evidence, EmbeddedSetup(pace_of(after), after.workers, after.batch_size))
    if after.batch_size != before.batch_size:
        return larger_batches_gain(evidence)
    world = world_of(evidence)

    def change(each: World) -> World:
        return at_pace(resized(each, after.workers, after.shards, evidence.company), pace_of(after), keyed=True)

    return gain_of(world, change, rate(world))


def pace_of(case: Case) -> str | int:
    return int(case.pace) if case.pace.isdigit() else case.pace


def judge_pair(before: Case, after: Case, folder: Path, rounds: int) -> dict[str, Any]:
    """One row of the table: medians over the rounds."""
    ranges: list[Range] = []
    gains: list[float] = []
    errors: list[float] = []
    busy = 0.0
    for number in range(rounds):
        runs = [run_of(folder, case, number) for case in (before, after)]
        busy = max(busy, *map(used_by_others, runs))
        first, second = (gather_evidence(RunFolder(run)) for run in runs)
        ranges.append(predicted(before, after, first))
        gains.append(second.rows_per_second / first.rows_per_second)
        errors.append(rate(world_of(first)) / first.rows_per_second - 1)
    low, high = (statistics.median(ends) for ends in zip(*ranges, strict=True))
    gain, worst = statistics.median(gains), max(errors, key=abs)
    off = max(low / gain, gain / high, 1.0) - 1
    wrong_sign = abs(gain - 1) > MATTERS and (high < 1 - MATTERS / 2 if gain > 1 else low > 1 + MATTERS / 2)
    line = {
        "before": str(before),
        "after": ", ".join(f"{name.replace('_', ' ')} {new}" for name, old, new in
                           zip(Case._fields, before, after, strict=True) if old != new),
        "predicted": [round(low, 2), round(high, 2)],
        "measured": round(gain, 2),
        "off": round(off, 3),
        "replay_error": round(worst, 3),
        "others": round(busy, 2),
        "holds": off <= WITHIN and not wrong_sign,
        "wide": high > (1 + WITHIN) * low,
        "replay_holds": max(map(abs, errors)) <= REPLAY_WITHIN,
    }  # fmt: skip
    say(line)
    return line


def judge_replay(case: Case, folder: Path, rounds: int) -> dict[str, Any]:
    """One row of the table of replays: the worst of the rounds."""
    found = [gather_evidence(RunFolder(run_of(folder, case, number))) for number in range(rounds)]
    step = statistics.median(
        sum(chunk.seconds for chunk in one.steady.chunks) / sum(chunk.steps for chunk in one.steady.chunks)
        for one in found
    )
    error = max((rate(world_of(one)) / one.rows_per_second - 1 for one in found), key=abs)
    line = {
        "run": str(case),
        "step_seconds": round(step, 7),
        "rows_per_second": round(statistics.median(one.rows_per_second for one in found)),
        "replay_error": round(error, 3),
        "others": round(max(used_by_others(run_of(folder, case, number)) for number in range(rounds)), 2),
        "replay_holds": abs(error) <= REPLAY_WITHIN,
    }
    say(line)
    return line


def replay_table(lines: list[dict[str, Any]]) -> str:
    """Runs that are hard to replay."""
    out = "\n| replayed run | a step takes | rows/s | replay off by | others | holds |\n|---|---|---|---|---|---|\n"
    for line in lines:
        out += (
            f"| {line['run']} | {line['step_seconds'] * 1e6:,.0f} µs | {line['rows_per_second']:,} "
            f"| {line['replay_error']:+.0%} | {line['others']} | {'yes' if line['replay_holds'] else '**no**'} |\n"
        )
    return out if lines else ""


def markdown(lines: list[dict[str, Any]], flags: argparse.Namespace) -> str:
    held, replayed, wide = (sum(line[name] for line in lines) for name in ("holds", "replay_holds", "wide"))
    out = (
        f"# Predicted and measured changes, {datetime.now(UTC):%Y-%m-%d}\n\n{machine()}. {flags.rows:,} click rows, "
        f"AdaGrad, {flags.seconds:g} seconds per run, {flags.rounds} round{'s' * (flags.rounds > 1)}. "
        f"`python benchmarks/predictions.py`.\n\n"
        f"{held} of {len(lines)} predictions are within {WITHIN:.0%} of what was measured, and have its sign; "
        f"{wide} of them are ranges that are wider than that. "
        f"{replayed} of {len(lines)} replays are within {REPLAY_WITHIN:.0%}. Workers + shards over Ray. Others: cores "
        f"that other programs used in the worst of a pair's runs.\n\n"
        f"| run | change | predicted | measured | off by | replay off by | others | holds |\n"
        f"|---|---|---|---|---|---|---|---|\n"
    )
    for line in lines:
        low, high = line["predicted"]
        told = f"{low}" if high <= 1.05 * low else f"{low}–{high}"
        out += (
            f"| {line['before']} | {line['after']} | {told} | {line['measured']} | {line['off']:.0%} "
            f"| {line['replay_error']:+.0%} | {line['others']} | {'yes' if line['holds'] else '**no**'} |\n"
        )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where data and runs are kept; runs that are there are used again")
    parser.add_argument("--only", help="part of the name of a pair")
    parser.add_argument("--judge", action="store_true", help="only judge runs that are there")
    parser.add_argument("--write", action="store_true")
    flags = parser.parse_args()
    wanted = [pair for pair in pairs(num_cores()) if not flags.only or flags.only in f"{pair[0]} {pair[1]}"]
    alone = [case for case in replays(num_cores()) if not flags.only or flags.only in f"replay {case}"]
    cases = list(dict.fromkeys([*(case for pair in wanted for case in pair), *alone]))
    with tempfile.TemporaryDirectory(prefix="plp") as temporary:
        folder = flags.folder or Path(temporary)
        if not flags.judge:
            # Once: what the machine's workers cost each other.
            if (best := load_ceilings()) is None or not best.training:
                subprocess.run([sys.executable, "-m", "paceline", "doctor"], check=True, stdout=subprocess.DEVNULL)
            measure(cases, data_of_models(folder, flags.rows), folder, flags.seconds, flags.rounds)
        lines = [
            judge_pair(*pair, folder, flags.rounds)
            for pair in wanted
            if all(is_there(folder, case, flags.rounds) for case in pair)
        ]
        alone_lines = [
            judge_replay(case, folder, flags.rounds) for case in alone if is_there(folder, case, flags.rounds)
        ]
    table = markdown(lines, flags) + replay_table(alone_lines)
    print(table)
    if flags.write:
        (HERE / "results" / f"{datetime.now(UTC):%Y-%m-%d}-predictions.md").write_text(table)


if __name__ == "__main__":
    main()
