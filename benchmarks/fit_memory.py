"""How much memory does training from a CSR matrix in memory take?

    python benchmarks/fit_memory.py [--write]

The limit is the matrix with its labels, twice the parameters with their optimizer state, and 500 MB. It is for the
anonymous memory of the whole process, Python and its libraries included, without the pages of mapped files, which the
system may drop. The resident memory beside it includes them. Each fit is one epoch on one worker, in a process of its
own that may use two cores; its memory is sampled every few milliseconds. Rows have distinct columns at random, and all
values are 1. `--write` keeps the table under benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from embedded import machine, watch_memory

HERE = Path(__file__).parent
CORES = 2
ALLOWED = 500_000_000
PIECE = 1 << 20
FM_DIM = 8


class Case(NamedTuple):
    """A fit: what trains, and the matrix."""

    what: str
    rows: int
    features: int
    nonzeros: int = 39
    values: str = "float32"


class Measured(NamedTuple):
    """The peaks of a fit and what it was given, in bytes. `given` is the matrix and the labels, `parameters` are with
    their optimizer state.
    """

    anonymous: int
    resident: int
    given: int
    parameters: int

    @property
    def limit(self) -> int:
        return self.given + 2 * self.parameters + ALLOWED


CASES = [
    Case("PacelineClassifier", 1_000, 1_000),
    Case("PacelineClassifier", 1_000_000, 1_000_000),
    Case("PacelineClassifier", 2_000_000, 1_000_000),
    Case("PacelineClassifier", 1_000_000, 1_000_000, values="float64"),
    Case("PacelineClassifier", 20_000, 1_000_000, nonzeros=2_000),
    Case("PacelineClassifier", 8_000_000, 100_000, nonzeros=5),
    Case("PacelineClassifier", 500_000, 20_000_000),
    Case("PacelineClassifier", 50_000, 60_000_000),
    Case("FMClassifier", 200_000, 5_000_000),
    Case("paceline.train", 1_500_000, 1_000_000),
    Case("paceline.train", 20_000, 1_000_000, nonzeros=2_000),
    Case("paceline.train", 8_000_000, 100_000, nonzeros=5),
    Case("paceline.train", 50_000, 30_000_000),
    Case("paceline.train", 50_000, 60_000_000),
]


def matrix_of(case: Case) -> tuple[Any, Any]:
    """A matrix with its labels, made in little more than its own memory."""
    import scipy.sparse

    chance, size = np.random.default_rng(0), case.rows * case.nonzeros
    columns = np.empty(size, np.int32)
    for start in range(0, size, PIECE):
        columns[start : start + PIECE] = chance.integers(0, case.features, min(PIECE, size - start), dtype=np.int32)
    offsets = np.arange(0, size + 1, case.nonzeros, dtype=np.int32)
    values = np.ones(size, case.values)
    rows = scipy.sparse.csr_matrix((values, columns, offsets), (case.rows, case.features))
    return rows, chance.integers(0, 2, case.rows, dtype=np.int8)


def fit(case: Case, folder: str) -> None:
    """Make a matrix and train on it; prints the bytes of what was given, and the peak of the resident memory."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    rows, labels = matrix_of(case)
    if case.what == "paceline.train":
        import paceline

        settings: dict[str, Any] = {"pace": "async", "workers": 1, "batch_size": 1, "epochs": 1, "progress": False}
        paceline.train(data=(rows, labels), run=f"{folder}/run", **settings)
    else:
        import paceline.sklearn

        getattr(paceline.sklearn, case.what)(epochs=1, random_state=0).fit(rows, labels)
    given = sum(array.nbytes for array in (rows.data, rows.indices, rows.indptr, labels))
    resident = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    assert resident is not None
    print(json.dumps({"given": given, "resident": 1024 * int(resident[1])}))


def measure(case: Case) -> Measured:
    """Fit in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--fit", json.dumps([*case]), folder]
        peak = [0]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            watch_memory(process, peak)
            assert process.stdout is not None
            said = process.stdout.read()
    if process.returncode:
        raise RuntimeError(f"{case} failed")
    numbers = 1 + FM_DIM if case.what.startswith("FM") else 1
    # AdaGrad: a value and a sum of squares per parameter.
    return Measured(anonymous=peak[0], parameters=8 * numbers * case.features, **json.loads(said.splitlines()[-1]))


def table(found: dict[Case, Measured]) -> str:
    head = ["fit", "rows × nonzeros", "features", "given", "parameters", "limit", "anonymous", "resident"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for case, one in found.items():
        name = case.what + (f", {case.values}" if case.values != "float32" else "")
        sizes = (one.given, one.parameters, one.limit, one.anonymous, one.resident)
        cells = [name, f"{case.rows:,} × {case.nonzeros:,}", f"{case.features:,}"]
        cells += [f"{size / 1e6:,.0f}" for size in sizes]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--fit", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.fit:
        fit(Case(*json.loads(asked.fit[0])), asked.fit[1])
        return
    found = {case: measure(case) for case in CASES}
    today = datetime.now(UTC).date()
    broken = [case for case, one in found.items() if one.anonymous > one.limit]
    verdict = "All fits keep to the limit." if not broken else f"Above the limit: {broken}"
    said = "`python benchmarks/fit_memory.py`, in megabytes (10⁶ bytes)."
    page = f"# Memory of fits from a CSR, {today}\n\n{machine()}\n\n{said}\n\n{table(found)}\n\n{verdict}\n"
    print(page)
    if asked.write:
        (HERE / "results" / f"{today}-memory.md").write_text(page)
    if broken:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
