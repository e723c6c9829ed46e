"""How well do single rows learn at pace async if thousands of them are computed at the same time, as on a GPU?

    python benchmarks/rows_in_flight.py [--rows 1000000] [--in-flight 1 32768] [--together 0.25 0.5 1] [--folder DIR]
                                        [--write]

A simulation on the CPU of `torch/sparse/`, for logistic regression on click rows, which needs no GPU: rows in flight
all start from the same weights, columns of hot keys are added up by program, steps are damped, and launches grow.
Prints the test loss after two epochs. `--together` is how much of the bound on the curvature of a key counts (decision
0037). One row at a time is not damped.
"""

from __future__ import annotations

import argparse
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from embedded import FEATURES, HERE, machine
from paceline.data.limits import SKEW_NAMES
from paceline.data.sparse.dataset import SparseDataset
from paceline.kernels.jit import compiled
from paceline.kernels.private import mean_products
from paceline.models.losses import Logistic, total_loss
from scaling import generated

EPOCHS, LARGEST_LAUNCH, FEWEST_ROWS, SHARE, FEWEST_LAUNCHES, PROGRAM_ROWS = 2, 65_536, 32, 8, 32, 32
HOT, MOST_COLUMNS, LEAST_SHARE, CURVATURE = 16_384, 176, 1 / 128, 0.25
OPTIMIZERS = {"AdaGrad, rate 0.05": (0.05, True), "SGD, rate 0.05": (0.05, False)}


class Table(NamedTuple):
    """Weights and sums of squares by key, and `bent` by hot key, the bias last in each; which keys are columns, and
    room for the sums of a program over them.
    """

    weights: Any
    squares: Any
    bent: Any
    is_column: Any
    totals: Any
    total_squares: Any


@compiled
def scores(rows: Any, chosen: Any, weights: Any, out: Any) -> None:
    for j in range(chosen.size):
        total = weights[-1]
        for k in range(rows.offsets[chosen[j]], rows.offsets[chosen[j] + 1]):
            total += weights[rows.keys[k]] * rows.values[k]
        out[j] = total


@compiled
def move(table: Any, key: int, bent: float, gradient: float, square: float, in_flight: float, rate: float,
         adagrad: bool) -> None:  # fmt: skip
    step = rate
    if adagrad:
        table.squares[key] += square
        step = rate / (np.sqrt(table.squares[key]) + 1e-6)
    covered = step * bent
    table.weights[key] -= step * gradient / max(in_flight * covered / (1 + covered), 1.0)


@compiled
def train(rows: Any, chosen: Any, table: Any, in_flight: int, rate: float, adagrad: bool, slopes: Any) -> None:
    """Updates by rows that all start from the same weights."""
    scores(rows, chosen, table.weights, slopes)
    bias, hot = table.weights.size - 1, table.is_column.size
    totals, squares = table.totals, table.total_squares
    for start in range(0, chosen.size, PROGRAM_ROWS):
        totals[:] = 0
        squares[:] = 0
        for j in range(start, min(start + PROGRAM_ROWS, chosen.size)):
            row = chosen[j]
            slope = 1 / (1 + np.exp(-slopes[j])) - rows.labels[row]
            totals[hot] += slope
            squares[hot] += slope * slope
            for k in range(rows.offsets[row], rows.offsets[row + 1]):
                key, gradient = rows.keys[k], slope * rows.values[k]
                if key < hot and table.is_column[key]:
                    totals[key] += gradient
                    squares[key] += gradient * gradient
                else:
                    bent = table.bent[key] if key < table.bent.size - 1 else 0.0
                    move(table, key, bent, gradient, gradient * gradient, in_flight, rate, adagrad)
        for key in range(hot):
            if table.is_column[key]:
                move(table, key, table.bent[key], totals[key], squares[key], in_flight, rate, adagrad)
        move(table, bias, table.bent[-1], totals[hot], squares[hot], in_flight, rate, adagrad)


def make_table(rows: Any, together: float) -> Table:
    """The table of a run on rows like these."""
    products = np.zeros(HOT + 1, np.float32)
    mean_products(rows.offsets, rows.keys, rows.values, products)
    counts = np.bincount(rows.keys[rows.keys < 512].astype(np.int64), minlength=512)
    is_column = counts >= LEAST_SHARE * rows.num_rows
    is_column[np.flatnonzero(is_column)[MOST_COLUMNS:]] = False
    bent = together * CURVATURE * products
    weights, squares = np.zeros(FEATURES + 1, np.float32), np.zeros(FEATURES + 1, np.float32)
    return Table(weights, squares, bent, is_column, np.zeros(513), np.zeros(513))


def loss_of(data: Path, together: float, in_flight: int, rate: float, adagrad: bool) -> float:
    """The test loss after some epochs."""
    dataset, trained, order = SparseDataset(data), 0, np.random.default_rng(0)
    table, slopes = make_table(dataset.block("train", 0), together), np.zeros(LARGEST_LAUNCH, np.float32)
    blocks, num_rows = dataset.split("train").blocks, dataset.split("train").rows
    for block in (int(block) for _ in range(EPOCHS) for block in order.permutation(len(blocks))):
        rows = dataset.block("train", block)
        places, at = order.permutation(rows.num_rows), 0
        while at < len(places):
            launch = max(FEWEST_ROWS, min(LARGEST_LAUNCH, num_rows // FEWEST_LAUNCHES, trained // SHARE))
            for start in range(at, min(at + launch, len(places)), in_flight):
                chosen = places[start : min(start + in_flight, at + launch)]
                train(rows, chosen, table, min(in_flight, launch), rate, adagrad, slopes)
            trained, at = trained + launch, at + launch
    total, out = 0.0, np.zeros(LARGEST_LAUNCH, np.float32)
    for index in range(len(dataset.split("test").blocks)):
        rows = dataset.block("test", index)
        scores(rows, np.arange(rows.num_rows), table.weights, out)
        total += total_loss(Logistic(), out[: rows.num_rows], rows.labels)
    return total / dataset.split("test").rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 32_768])
    parser.add_argument("--together", type=float, nargs="+", default=[0.25, 0.5, 1.0])
    parser.add_argument("--folder", type=Path, help="where the data is kept; default: a temporary folder")
    parser.add_argument("--write", action="store_true", help="keep the table under benchmarks/results/")
    options = parser.parse_args()
    text = (
        f"# Rows in flight, {datetime.now(UTC):%Y-%m-%d}\n\nA simulation on {machine()}. {options.rows:,} click rows, "
        f"{EPOCHS} epochs; `python benchmarks/rows_in_flight.py`. Test loss by how much of the bound counts.\n\n"
        f"| skew | optimizer | rows in flight | {' | '.join(f'{part:g}' for part in options.together)} |\n"
        f"|{'---|' * (3 + len(options.together))}\n"
    )
    with tempfile.TemporaryDirectory() as temporary:
        for skew in SKEW_NAMES:
            data = generated(options.folder or Path(temporary), options.rows, FEATURES, skew)
            for name, (rate, adagrad) in OPTIMIZERS.items():
                for in_flight in options.in_flight:
                    parts = options.together if in_flight > 1 else [1.0]
                    found = [loss_of(data, part, in_flight, rate, adagrad) for part in parts]
                    found *= len(options.together) // len(found)
                    line = f"| {skew} | {name} | {in_flight:,} | {' | '.join(f'{loss:.4f}' for loss in found)} |\n"
                    print(line, end="", flush=True)
                    text += line
    print(text)
    if options.write:
        (HERE / "results" / f"{datetime.now(UTC):%Y-%m-%d}-rows-in-flight.md").write_text(text)


if __name__ == "__main__":
    main()
