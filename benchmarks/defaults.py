"""Which pace and batch size should `paceline train --data D` have, with as many workers as cores?

    python benchmarks/defaults.py [DATA] [--rows 1000000] [--workers 1 2 16] [--rounds 3] [--only PART_OF_A_NAME]
                                  [--folder DIR] [--write]

Trains one epoch, as the plain command does, on generated clicks (two skews), and, if DATA has them, on `libsvm/a9a`,
`libsvm/agaricus.txt.train`, `criteo/criteo_80k.tsv.gz` and `mnist/`. Without MNIST, images of its size are generated.
Every candidate is measured in turn, `--rounds` times with different seeds. Rates of more workers than cores mean
nothing; their losses do.

Prints one JSON line per measurement, then tables of test losses and rates; `--write` keeps them under
benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from embedded import FEATURES, HERE, machine
from quality import a9a, criteo

SPLIT = "split"
# Pace and batch size. With `SPLIT`, that many rows of an update are divided among the workers.
SPARSE = {
    "sync 100": ("sync", 100, ""),
    "sync 100, split": ("sync", 100, SPLIT),
    "async 1": ("async", 1, ""),
    "async 100": ("async", 100, ""),
    "async 1,000": ("async", 1000, ""),
    "pace 8, 100": (8, 100, ""),
}
DENSE = {
    "sync 100": ("sync", 100, ""),
    "sync 64, split": ("sync", 64, SPLIT),
    "async 16": ("async", 16, ""),
    "async 32": ("async", 32, ""),
    "async 100": ("async", 100, ""),
}


class Measured(NamedTuple):
    """One run: its test loss, and rows per second."""

    loss: float
    rate: float


def datasets(data: Path | None, folder: Path, rows: int) -> dict[str, tuple[Path, dict[str, Any]]]:
    """What to train on, by name: folders, made where they are missing, and flags of `train`."""
    found: dict[str, tuple[Path, dict[str, Any]]] = {}
    for skew in ("log-uniform", "criteo"):
        path = folder / f"clicks-{skew}-{rows}"
        size = "--rows", rows, "--test-rows", rows // 10, "--features", FEATURES
        make(path, "generate", "clicks", *size, "--skew", skew)
        found[f"clicks, {skew}"] = path, {}
    if data is not None:
        found["a9a"] = prepared(folder / "a9a", **a9a(data, folder)), {}
        train, test = (data / "libsvm" / f"agaricus.txt.{name}" for name in ("train", "test"))
        found["agaricus"] = prepared(folder / "agaricus", sources=[str(train)], test=[str(test)]), {}
        found["criteo_80k"] = prepared(folder / "criteo", **criteo(data, folder)), {}
    digits = folder / "digits"
    if data is not None and (data / "mnist").is_dir():
        make(digits, "prepare", data / "mnist")
    else:
        make(digits, "generate", "images", "--rows", 60_000, "--size", 28, "--channels", 1, "--classes", 10)
    for model in ("softmax", "alexnet-small", "defaults:layers"):
        found[f"{model} on digits"] = digits, {"model": model}
    return found


def layers(shape: tuple[int, int, int], classes: int) -> Any:
    """A PyTorch module as a user may write one."""
    from torch import nn

    inputs = shape[0] * shape[1] * shape[2]
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 100), nn.ReLU(), nn.Linear(100, classes))


def make(out: Path, *words: Any) -> None:
    if not out.exists():
        subprocess.run([sys.executable, "-m", "paceline", *map(str, words), "--out", str(out)], check=True)


def prepared(out: Path, sources: list[str], test: list[str], **flags: Any) -> Path:
    options = [word for name, value in flags.items() for word in (f"--{name}", value)]
    make(out, "prepare", *sources, *(word for one in test for word in ("--test", one)), *options)
    return out


def measure(data: str, flags: dict[str, Any]) -> Measured:
    """One epoch, in this process, after a short run that compiles and reads."""
    import paceline

    with tempfile.TemporaryDirectory() as folder:
        paceline.train(data=data, run=f"{folder}/first", seconds=1, checkpoint_every=0, **flags)
        result = paceline.train(data=data, run=f"{folder}/run", epochs=1, checkpoint_every=0, **flags).result
        return Measured(result["test"]["loss"], result["rows_per_second"])


def measure_apart(data: Path, flags: dict[str, Any]) -> Measured:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--measure", json.dumps([str(data), flags])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=HERE, check=False)
    if done.returncode:
        sys.exit(f"error: {' '.join(command)}")
    return Measured(*json.loads(done.stdout.splitlines()[-1]))


def table(title: str, names: list[str], cells: dict[tuple[str, str], str]) -> str:
    """One row per candidate, one column per dataset."""
    rows = list(dict.fromkeys(row for row, _ in cells))
    text = f"{title}:\n\n| | " + " | ".join(names) + " |\n" + "|---" * (len(names) + 1) + "|\n"
    for row in rows:
        text += f"| {row} | " + " | ".join(cells.get((row, name), "") for name in names) + " |\n"
    return text + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="measure the datasets whose names contain this")
    parser.add_argument("--folder", type=Path, help="where the data is kept; default: a temporary folder")
    parser.add_argument("--write", action="store_true", help="keep the tables under benchmarks/results/")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(*json.loads(arguments.measure))))
        return
    found: dict[tuple[str, str, int], list[Measured]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        chosen = {n: d for n, d in datasets(arguments.data, folder, arguments.rows).items() if arguments.only in n}
        for seed in range(arguments.rounds):
            for name, (data, flags) in chosen.items():
                for candidate, (pace, rows, how) in (DENSE if flags else SPARSE).items():
                    for workers in arguments.workers:
                        size = max(1, rows // workers) if how == SPLIT else rows
                        settings = {"pace": pace, "batch_size": size, "workers": workers, "seed": seed, **flags}
                        one = measure_apart(data, settings)
                        found.setdefault((name, candidate, workers), []).append(one)
                        line = {"data": name, "case": candidate, "workers": workers, **one._asdict()}
                        print(json.dumps(line), flush=True)
    names = list(chosen)
    losses, rates = {}, {}
    for (name, candidate, workers), runs in found.items():
        row = f"{candidate}, {workers} worker{'s' * (workers > 1)}", name
        losses[row] = f"{statistics.median(one.loss for one in runs):.4f}"
        if workers <= len(os.sched_getaffinity(0)):
            rates[row] = f"{statistics.median(one.rate for one in runs) / 1e6:.3f}"
    text = (
        f"# Pace and batch size of the plain command, {datetime.now(UTC):%Y-%m-%d}\n\n{machine()}. "
        f"{arguments.rows:,} click rows, {FEATURES:,} features; one epoch with AdaGrad at rate 0.05; medians of "
        f"{arguments.rounds} rounds; `python benchmarks/defaults.py`.\n\n"
        + table("Test loss", names, losses) + table("Millions of rows per second", names, rates)
    )  # fmt: skip
    print(text)
    if arguments.write:
        (HERE / "results" / f"{datetime.now(UTC):%Y-%m-%d}-defaults.md").write_text(text)


if __name__ == "__main__":
    main()
