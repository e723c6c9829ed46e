"""What does it cost `prepare` to keep the names of features?

    python benchmarks/names.py [--criteo SAMPLE.tsv.gz] [--rows 1000000] [--rounds 3] [--cases criteo ...] [--write]

Prepares each file with and without names, in turns, and prints the seconds of each and the ratio of their medians.
`criteo` is the sample repeated to that many rows; `clicks` are rows of `benchmarks/prepare.py` in the same format, most
of whose texts are new; `csv` are a quarter as many of these rows as CSV.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import statistics
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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


def seconds(path: Path, out: Path, settings: dict[str, Any]) -> float:
    prepared = prepare(PrepareConfig(sources=[str(path)], out=str(out), **settings), lambda _: None)
    shutil.rmtree(out)
    return prepared.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--criteo", help="a gzipped sample of Criteo's data, for the case `criteo`")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="+", default=["criteo", "clicks", "csv"])
    parser.add_argument("--write", action="store_true", help="keep the table under benchmarks/results/")
    given = parser.parse_args()
    lines = []
    for case in [case for case in given.cases if case != "criteo" or given.criteo]:
        with tempfile.TemporaryDirectory() as temporary:
            path, out = Path(temporary, "rows"), Path(temporary, "data")
            if case == "criteo":
                write_sample(path, given.criteo, given.rows)
            elif case == "clicks":
                write_clicks(path, given.rows)
            else:
                write_csv(path, given.rows // 4)
            settings: dict[str, Any] = {"format": "csv" if case == "csv" else "criteo"}
            found: dict[bool, list[float]] = {True: [], False: []}
            for turn in range(1 + given.rounds):
                for names in (False, True):
                    took = seconds(path, out, {**settings, "names": names})
                    if turn:  # the first one compiles
                        found[names].append(took)
            without, with_names = (statistics.median(found[names]) for names in (False, True))
            size = path.stat().st_size >> 20
        lines.append(f"| {case} | {size:,} | {without:.2f} | {with_names:.2f} | {with_names / without:.3f} |")
        print(lines[-1], flush=True)
    table = (
        f"# Names of features, {datetime.now(UTC):%Y-%m-%d}\n\n{machine()}. Seconds of `prepare`, in turns, medians of "
        f"{given.rounds} rounds; `python benchmarks/names.py`.\n\n| input | MiB | without names | with names | ratio "
        f"(at most {MOST}) |\n|---|---|---|---|---|\n" + "\n".join(lines) + "\n"
    )
    print(table)
    if given.write:
        (Path(__file__).parent / "results" / f"{datetime.now(UTC):%Y-%m-%d}-names.md").write_text(table)


if __name__ == "__main__":
    main()
