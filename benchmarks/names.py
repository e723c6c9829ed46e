"""What does it cost `prepare` to keep the names of features?

    python benchmarks/names.py [--criteo SAMPLE.tsv.gz] [--rows 1000000] [--rounds 15] [--cases criteo ...] [--write]

Prepares each file with and without names, in rounds that swap their order. Prints the median seconds of each, the
median of the ratios of rounds, and the ratios of the least seconds and of the least processor times. `once` is the
sample as it is, `criteo` the sample repeated to that many rows; `clicks` are rows of `benchmarks/prepare.py` in the
same format, many of whose texts are new; `csv` are a quarter as many of these rows as CSV. A disk that writes back what
earlier rounds left makes single rounds a third slower: with TMPDIR=/dev/shm, files are in memory.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from embedded import machine
from paceline.data.prepare import prepare
from paceline.data.prepare_settings import PrepareConfig
from prepare import criteo, make_clicks

MOST = 1.15
HEADER = ",".join(["label", *(f"n{j}" for j in range(13)), *(f"t{j}" for j in range(26))]).encode() + b"\n"


def write_sample(path: Path, sample: str, rows: int) -> None:
    with gzip.open(sample) as file:
        text = file.read()
    with path.open("wb") as out:
        for _ in range(-(-rows // text.count(b"\n"))):
            out.write(text)


def write_clicks(path: Path, rows: int) -> None:
    with path.open("wb") as out:
        for clicks in make_clicks(rows):
            out.write(criteo(clicks))


def write_csv(path: Path, rows: int) -> None:
    with path.open("wb") as out:
        out.write(HEADER)
        for clicks in make_clicks(rows):
            out.write(criteo(clicks).replace(b"\t", b","))


def seconds(path: Path, out: Path, settings: dict[str, Any]) -> tuple[float, float]:
    """The seconds that `prepare` takes, and its processor time."""
    began = time.process_time()
    prepared = prepare(PrepareConfig(sources=[str(path)], out=str(out), **settings), lambda _: None)
    took = time.process_time() - began
    shutil.rmtree(out)
    return prepared.seconds, took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--criteo", help="a gzipped sample of Criteo's data, for the case `criteo`")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cases", nargs="+", default=["once", "criteo", "clicks", "csv"])
    parser.add_argument("--write", action="store_true", help="keep the table under benchmarks/results/")
    given = parser.parse_args()
    lines = []
    for case in [case for case in given.cases if case not in ("once", "criteo") or given.criteo]:
        with tempfile.TemporaryDirectory() as temporary:
            path, out = Path(temporary, "rows"), Path(temporary, "data")
            if case in ("once", "criteo"):
                write_sample(path, given.criteo, given.rows if case == "criteo" else 1)
            elif case == "clicks":
                write_clicks(path, given.rows)
            else:
                write_csv(path, given.rows // 4)
            settings: dict[str, Any] = {"format": "csv" if case == "csv" else "criteo"}
            found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
            for turn in range(1 + given.rounds):
                for names in (False, True) if turn % 2 else (True, False):
                    took = seconds(path, out, {**settings, "names": names})
                    if turn:  # the first one compiles
                        found[names].append(took)
            without, with_names = (np.array(found[names]) for names in (False, True))
            size = path.stat().st_size >> 20
        medians = f"{np.median(without[:, 0]):.3f} | {np.median(with_names[:, 0]):.3f}"
        least = with_names.min(0) / without.min(0)
        ratio = np.median(with_names[:, 0] / without[:, 0])
        lines.append(f"| {case} | {size:,} | {medians} | {ratio:.2f} | {least[0]:.2f} | {least[1]:.2f} |")
        print(lines[-1], flush=True)
    table = (
        f"# Names of features, {datetime.now(UTC):%Y-%m-%d}\n\n{machine()}. Medians of {given.rounds} rounds of "
        f"`prepare`, in seconds, files in "
        f"{tempfile.gettempdir()}; `python benchmarks/names.py`.\n\n| input | MiB | without names | with names | ratio "
        f"(at most {MOST}) | least seconds | least processor times |\n|---|---|---|---|---|---|---|\n"
        + "\n".join(lines)
        + "\n"
    )
    print(table)
    if given.write:
        (Path(__file__).parent / "results" / f"{datetime.now(UTC):%Y-%m-%d}-names.md").write_text(table)


if __name__ == "__main__":
    main()
