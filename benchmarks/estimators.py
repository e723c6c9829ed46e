"""How long does a fit take from rows in memory? `PacelineClassifier` against scikit-learn's `SGDClassifier`.

    python benchmarks/estimators.py [--rows 100000] [--rounds 7]

Logistic regression on CSR matrices of 39 nonzeros per row over 1,000,000 features, 5 epochs each (`tol=None`), in turns
after one fit of each that does not count. Everything counts that `fit` does, conversion included. The columns are
uniform (`even`), or drawn as those of clicks are, few of them often (`skewed`). Then fits of 150 rows of 4 columns,
also through `paceline.train`, which writes a dataset and a run folder. Prints medians in seconds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.linear_model import SGDClassifier

import paceline
from embedded import machine
from paceline.sklearn import PacelineClassifier

FEATURES, NONZEROS, EPOCHS, SMALL = 1_000_000, 39, 5, 150


def rows_of(kind: str, count: int) -> tuple[Any, Any]:
    """A matrix with its labels."""
    chance = np.random.default_rng(0)
    places = chance.random((count, NONZEROS))
    columns = (FEATURES * (places**6 if kind == "skewed" else places)).astype(np.int32)
    offsets = np.arange(0, columns.size + 1, NONZEROS, dtype=np.int32)
    matrix = scipy.sparse.csr_matrix((np.ones(columns.size, np.float32), columns.ravel(), offsets), (count, FEATURES))
    matrix.sum_duplicates()
    scores = matrix @ (chance.normal(size=FEATURES) / 2)
    return matrix, (scores + chance.logistic(size=count) > 0).astype(int)


def in_turns(fits: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The median seconds of each."""
    seconds: dict[str, list[float]] = {name: [] for name in fits}
    for turn in range(rounds + 1):
        for name, fit in fits.items():
            began = time.perf_counter()
            fit()
            if turn:
                seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(found) for name, found in seconds.items()}


def with_a_folder(folder: str, rows: Any, labels: Any) -> None:
    """A run, in a folder of its own."""
    path = Path(folder) / str(time.perf_counter_ns())
    paceline.train(data=(rows, labels), workers=1, run=path, progress=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    print(f"{machine()}\n\n| rows | fit | seconds | SGDClassifier takes |\n|---|---|---|---|")
    for kind in ("even", "skewed"):
        rows, labels = rows_of(kind, asked.rows)
        fits = {
            "SGDClassifier": SGDClassifier(loss="log_loss", max_iter=EPOCHS, tol=None, random_state=0),
            "PacelineClassifier": PacelineClassifier(epochs=EPOCHS, random_state=0),
            "PacelineClassifier, n_jobs=2": PacelineClassifier(epochs=EPOCHS, n_jobs=2),
        }
        found = in_turns({name: partial(one.fit, rows, labels) for name, one in fits.items()}, asked.rounds)
        for name, seconds in found.items():
            print(f"| {kind} | {name} | {seconds:.3f} | {found['SGDClassifier'] / seconds:.2f}× |")
    small = np.random.default_rng(0).normal(size=(SMALL, 4))
    labels = (small[:, 0] > 0).astype(int)
    with tempfile.TemporaryDirectory() as folder:
        tiny: dict[str, Callable[[], Any]] = {
            "PacelineClassifier": partial(PacelineClassifier(random_state=0).fit, small, labels),
            "paceline.train": partial(with_a_folder, folder, small, labels),
        }
        for name, seconds in in_turns(tiny, asked.rounds).items():
            print(f"| {SMALL} × 4 | {name} | {seconds:.3f} | |")


if __name__ == "__main__":
    main()
