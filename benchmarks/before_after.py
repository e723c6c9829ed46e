"""Is this checkout as fast as another one? The cases of the other benchmarks, in two alternating checkouts.

    python benchmarks/before_after.py --before ../old-checkout [--pairs 7] [--only PART_OF_A_NAME] [--write]

Each measurement is a command in its own process, as a user would type it. The two checkouts alternate, and which one
goes first changes from pair to pair. The figure of a case is the median of after / before over its pairs: rows per
second, or seconds if the case is about start-up. Both use the same Python environment, the same prepared data and the
same settings. With `--folder`, the figures stay there next to the data, so that `--write` also keeps those of the calls
before.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from embedded import machine

HERE = Path(__file__).resolve().parent.parent
FEATURES = 33_762_578
MOST_SLOWER = 0.05


class Case(NamedTuple):
    """A command, and which number of its result counts: `rows_per_second`, or `startup_seconds`."""

    flags: dict[str, Any]
    measure: str = "rows_per_second"
    data: str = "clicks"


EMBEDDED = {"data": "clicks", "workers": 1, "epochs": 6, "learning_rate": 0.02, "optimizer": "sgd"}
CLUSTER = {"data": "clicks", "engine": "ray", "workers": 2, "seconds": 5, "optimizer": "sgd", "learning_rate": 0.02}
ALEXNET = {
    "data": "pictures", "model": "alexnet", "pace": "sync", "optimizer": "sgd", "learning_rate": 0.01, "momentum": 0.9,
    "steps": 6,
}  # fmt: skip
CASES: dict[str, Case] = {
    "embedded: async, SGD, batch 1, 1 worker": Case({**EMBEDDED, "pace": "async", "batch_size": 1}),
    "embedded: async, SGD, batch 1, 2 workers": Case({**EMBEDDED, "pace": "async", "batch_size": 1, "workers": 2}),
    "embedded: async, SGD, batch 1,000, 2 workers": Case(
        {**EMBEDDED, "pace": "async", "batch_size": 1000, "workers": 2}
    ),
    "embedded: sync, SGD, batch 1,000, 2 workers": Case({**EMBEDDED, "pace": "sync", "batch_size": 1000, "workers": 2}),
    "embedded: sync, SGD, batch 100, 2 workers": Case(
        {**EMBEDDED, "pace": "sync", "batch_size": 100, "workers": 2, "epochs": 2}
    ),
    "embedded: async, FTRL, batch 1, 1 worker": Case(
        {**EMBEDDED, "pace": "async", "batch_size": 1, "optimizer": "ftrl"}
    ),
    "embedded: async, AdaGrad, batch 1, 1 worker": Case(
        {**EMBEDDED, "pace": "async", "batch_size": 1, "optimizer": "adagrad"}
    ),
    "embedded: first step": Case(
        {**EMBEDDED, "pace": "sync", "batch_size": 100, "steps": 1, "epochs": 0}, "startup_seconds"
    ),
    "cluster: async, batch 100": Case({**CLUSTER, "pace": "async", "batch_size": 100}),
    "cluster: async, batch 1,000": Case({**CLUSTER, "pace": "async", "batch_size": 1000}),
    "cluster: async, batch 10,000": Case({**CLUSTER, "pace": "async", "batch_size": 10_000}),
    "cluster: sync, batch 1,000": Case({**CLUSTER, "pace": "sync", "batch_size": 1000}),
    "cluster: first step": Case(
        {**CLUSTER, "pace": "sync", "batch_size": 100, "steps": 1, "seconds": 0}, "startup_seconds"
    ),
    "dense: softmax, batch 275": Case(
        {"data": "digits", "model": "softmax", "pace": "sync", "workers": 1, "batch_size": 275, "epochs": 8,
         "optimizer": "sgd"}
    ),
    "dense: AlexNet, batch 64": Case({**ALEXNET, "workers": 1, "batch_size": 64}),
    "dense: AlexNet, allreduce, 2 workers": Case(
        {**ALEXNET, "batch_size": 32, "workers": 2, "engine": "ray", "exchange": "allreduce"}
    ),
    "dense: AlexNet, a shard, 2 workers": Case({**ALEXNET, "batch_size": 32, "workers": 2, "engine": "ray"}),
    "prepare: LIBSVM": Case({"source": "clicks.svm", "format": "libsvm", "features": FEATURES}, data="prepare"),
    "prepare: Criteo": Case({"source": "clicks.tsv", "format": "criteo"}, data="prepare"),
    "prepare: TFRecord": Case(
        {"source": "clicks.tfrecord", "format": "tfrecord", "features": FEATURES}, data="prepare"
    ),
}  # fmt: skip


def paceline(source: Path, place: Path, *words: str) -> str:
    """Run a command of the checkout at `source`; return its output."""
    env = os.environ | {"PYTHONPATH": str(source / "src"), "PYTHONUNBUFFERED": "1"}
    # As when it is installed: pip compiles modules once, a start never does.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-P", "-m", "paceline", *words]
    done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode:
        sys.exit(f"error: {' '.join(words)} in {source}\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
    return done.stdout


def measure(source: Path, place: Path, case: Case) -> float:
    """One measurement: rows per second, or starts per second. Higher is better."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        if case.data == "prepare":
            return measure_prepare(source, place, Path(folder), case)
        words = [f"--{name.replace('_', '-')}={value}" for name, value in case.flags.items()]
        paceline(source, place, "train", *words, f"--run={folder}/run", "--checkpoint-every=0")
        result = json.loads(Path(folder, "run", "result.json").read_text())
        check_settings(case, tomllib.loads(Path(folder, "run", "config.toml").read_text()))
        value = float(result[case.measure])
        return 1 / value if case.measure == "startup_seconds" else value


def check_settings(case: Case, settings: dict[str, Any]) -> None:
    """Both checkouts must run what the case says: defaults, which differ between versions, are named in it."""
    for name in ("pace", "workers", "batch_size"):
        if settings[name] != case.flags[name]:
            sys.exit(f"error: {name} is {settings[name]}, expected {case.flags[name]}")


def measure_prepare(source: Path, place: Path, folder: Path, case: Case) -> float:
    """Rows per second of `prepare`, timed inside the process, without its start."""
    code = (
        "import json, sys, time; from paceline.data.prepare import PrepareConfig, prepare\n"
        "flags = json.loads(sys.argv[1]); began = time.perf_counter()\n"
        "prepare(PrepareConfig(**flags), lambda progress: None); print(time.perf_counter() - began)"
    )
    flags = {name: value for name, value in case.flags.items() if name != "source"}
    flags |= {"sources": [case.flags["source"]], "out": str(folder / "out")}
    env = os.environ | {"PYTHONPATH": str(source / "src")}
    command = [sys.executable, "-P", "-c", code, json.dumps(flags)]
    done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, check=True, timeout=900)
    return PREPARED_ROWS / float(done.stdout.split()[-1])


PREPARED_ROWS = 500_000


def make_inputs(before: Path, place: Path, names: set[str]) -> None:
    """The data of the cases, made by the older code. The newer code must be able to read it."""
    if "clicks" in names and not (place / "clicks").exists():
        paceline(before, place, "generate", "clicks", "--rows=1000000", f"--features={FEATURES}", "--out=clicks")
    if "digits" in names and not (place / "digits").exists():
        images = ["--rows=55000", "--size=28", "--channels=1", "--classes=10", "--out=digits"]
        paceline(before, place, "generate", "images", *images)
    if "pictures" in names and not (place / "pictures").exists():
        paceline(before, place, "generate", "images", "--rows=1000", "--size=224", "--classes=1000", "--out=pictures")
    if "prepare" in names:
        import prepare

        for file, encode in (
            ("clicks.svm", prepare.libsvm), ("clicks.tsv", prepare.criteo), ("clicks.tfrecord", prepare.tfrecord)
        ):  # fmt: skip
            if not (place / file).exists():
                prepare.write(place / file, encode, PREPARED_ROWS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="the other checkout")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--only", default="", help="a part of the cases' names")
    parser.add_argument("--folder", type=Path, help="where data is kept; a temporary folder if left out")
    parser.add_argument("--write", action="store_true", help="keep the table under benchmarks/results/")
    options = parser.parse_args()
    before, after = options.before.resolve(), HERE
    chosen = {name: case for name, case in CASES.items() if options.only in name}
    with tempfile.TemporaryDirectory() as temporary:
        place = (options.folder or Path(temporary)).resolve()
        place.mkdir(parents=True, exist_ok=True)
        kept = place / "figures.json"
        lines = json.loads(kept.read_text()) if kept.exists() else {}
        make_inputs(before, place, {str(case.flags.get("data", case.data)) for case in chosen.values()})
        for name, case in chosen.items():
            for source in (before, after):
                measure(source, place, case)  # compiles, and loads the data into memory
            pairs = []
            for number in range(options.pairs):
                order = (before, after) if number % 2 == 0 else (after, before)
                found = {source: measure(source, place, case) for source in order}
                pairs.append((found[before], found[after]))
            ratios = sorted(new / old for old, new in pairs)
            line = {
                "case": name,
                "pairs": options.pairs,
                "before": statistics.median(old for old, _ in pairs),
                "after": statistics.median(new for _, new in pairs),
                "ratio": statistics.median(ratios),
                "lowest": ratios[0],
                "highest": ratios[-1],
            }
            lines[name] = line
            kept.write_text(json.dumps(lines))
            print(json.dumps(line), flush=True)
    print(table := markdown([lines[name] for name in CASES if name in lines]))
    if options.write:
        path = HERE / "benchmarks" / "results" / f"{datetime.now(UTC):%Y-%m-%d}-before-after.md"
        path.write_text(table)


def markdown(lines: list[dict[str, Any]]) -> str:
    text = [
        "# Before and after",
        "",
        f"`python benchmarks/before_after.py`, {machine()}. Medians of alternating pairs; the ratio is after / before",
        "in rows per second, or in starts per second, so above 1 is faster.",
        "",
        "| case | pairs | before | after | ratio | lowest to highest | at most 5 % slower |",
        "|---|---|---|---|---|---|---|",
    ]
    for line in lines:
        unit = "{:.2f} s" if "first step" in line["case"] else "{:,.0f}"
        old, new = (1 / line[n] if "first step" in line["case"] else line[n] for n in ("before", "after"))
        text.append(
            f"| {line['case']} | {line['pairs']} | {unit.format(old)} | {unit.format(new)} | {line['ratio']:.3f} "
            f"| {line['lowest']:.2f} to {line['highest']:.2f} | {'yes' if line['ratio'] >= 1 - MOST_SLOWER else 'no'} |"
        )
    return "\n".join([*text, ""])


if __name__ == "__main__":
    main()
