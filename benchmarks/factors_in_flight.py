"""How well do factorization machines learn at pace async if many programs of a GPU train on rows at the same time?

    python benchmarks/factors_in_flight.py [--rows 600000] [--programs 264 528] [--seeds 2] [--folder DIR] [--write]

A simulation on the CPU of `torch/sparse/factorization.py`, which needs no GPU, on click rows whose labels depend on
pairs of features. Each program has 32 rows and takes one after the other. All programs take a row at the same time,
from the same weights. They update listed keys row by row; columns of hot keys and the bias are added up, and updated
after all of a program's rows. Steps are damped by the rows in flight (decision 0037). Of listed keys, these are counted
in two ways: as all rows of all programs, or as one row per program. Without damping, steps are as large as on the CPU.

Prints the mean test loss after two epochs, with 16 factors and row-wise AdaGrad, and that of one row at a time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from embedded import HERE, machine
from paceline.data.sparse.dataset import SparseDataset
from paceline.data.synthetic import generate_clicks
from paceline.kernels.jit import compiled
from paceline.kernels.private import mean_products

FACTORS, FEATURES, EPOCHS, ROWS_PER_PROGRAM = 16, 1_000_000, 2, 32
RATE, FACTOR_RATE, INITIAL, EPSILON = 0.05, 0.02, 0.01, 1e-6
LARGEST_LAUNCH, SHARE, FEWEST_LAUNCHES = 65_536, 8, 32
HOT, MOST_COLUMNS, LEAST_SHARE, CURVATURE, TOGETHER = 512, 45, 1 / 128, 0.25, 0.5
# How rows of listed keys in flight are counted.
WAYS = {"all rows": ROWS_PER_PROGRAM, "one row per program": 1, "not damped": 0}


class Machine(NamedTuple):
    """Weights and factors by key, and their sums of squares; the bias is the last. `bent` is the curvature by key."""

    weights: Any
    factors: Any
    squares: Any
    factor_squares: Any
    bent: Any
    is_column: Any


class Columns(NamedTuple):
    """What programs [programs, hot keys] know and add up of columns; the bias is the last one."""

    weights: Any
    factors: Any
    sums: Any
    squares: Any
    factor_sums: Any
    factor_squares: Any


@compiled
def update_weight(m: Any, key: int, gradient: float, square: float, in_flight: float) -> None:
    m.squares[key] += square
    step = RATE / (np.sqrt(m.squares[key]) + EPSILON)
    covered = step * m.bent[key]
    m.weights[key] -= step * gradient / max(in_flight * covered / (1 + covered), 1.0)


@compiled
def update_factors(m: Any, key: int, gradients: Any, square: float, in_flight: float) -> None:
    m.factor_squares[key] += square
    step = FACTOR_RATE / (np.sqrt(m.factor_squares[key]) + EPSILON)
    covered = step * m.bent[key]
    step /= max(in_flight * covered / (1 + covered), 1.0)
    for f in range(FACTORS):
        m.factors[key, f] -= step * gradients[f]


@compiled
def score(m: Any, rows: Any, row: int, columns: Any, both: Any) -> Any:
    """The score of a row, whose sums of factors go to `both`. Columns are as programs know them."""
    total, alone, hot = columns.weights[-1], 0.0, m.is_column.size
    both[:] = 0
    for k in range(rows.offsets[row], rows.offsets[row + 1]):
        key, value = rows.keys[k], rows.values[k]
        is_column = key < hot and m.is_column[key]
        total += (columns.weights[key] if is_column else m.weights[key]) * value
        for f in range(FACTORS):
            term = (columns.factors[key, f] if is_column else m.factors[key, f]) * value
            both[f] += term
            alone += term * term
    for f in range(FACTORS):
        total += 0.5 * both[f] * both[f]
    return total - 0.5 * alone


@compiled
def train_row(m: Any, rows: Any, row: int, slope: float, both: Any, columns: Any, program: int, listed: float,
              gradients: Any) -> None:  # fmt: skip
    hot = m.is_column.size
    columns.sums[program, hot] += slope
    columns.squares[program, hot] += slope * slope
    for k in range(rows.offsets[row], rows.offsets[row + 1]):
        key, value = rows.keys[k], rows.values[k]
        gradient, square = slope * value, 0.0
        is_column = key < hot and m.is_column[key]
        for f in range(FACTORS):
            own = columns.factors[key, f] if is_column else m.factors[key, f]
            gradients[f] = gradient * (both[f] - value * own)
            square += gradients[f] * gradients[f] / FACTORS
        if is_column:
            columns.sums[program, key] += gradient
            columns.squares[program, key] += gradient * gradient
            columns.factor_squares[program, key] += square
            for f in range(FACTORS):
                columns.factor_sums[program, key, f] += gradients[f]
        else:
            update_weight(m, key, gradient, gradient * gradient, listed)
            update_factors(m, key, gradients, square, listed)


@compiled
def train(m: Any, rows: Any, chosen: Any, programs: int, listed: float, in_flight: float, columns: Any, slopes: Any,
          both: Any, gradients: Any) -> None:  # fmt: skip
    """One round of all programs; row j is the next one of program j % programs."""
    hot, last = m.is_column.size, m.weights.size - 1
    for key in range(hot):
        columns.weights[key] = m.weights[key]
        for f in range(FACTORS):
            columns.factors[key, f] = m.factors[key, f]
    columns.weights[hot] = m.weights[last]
    columns.sums[:] = 0
    columns.squares[:] = 0
    columns.factor_sums[:] = 0
    columns.factor_squares[:] = 0
    for start in range(0, chosen.size, programs):
        stop = min(start + programs, chosen.size)
        for j in range(start, stop):
            z = score(m, rows, chosen[j], columns, both[j - start])
            slopes[j - start] = 1 / (1 + np.exp(-z)) - rows.labels[chosen[j]]
        for j in range(start, stop):
            p = j - start
            train_row(m, rows, chosen[j], slopes[p], both[p], columns, p, listed, gradients)
    for p in range(min(programs, chosen.size)):
        update_weight(m, last, columns.sums[p, hot], columns.squares[p, hot], in_flight)
        for key in range(hot):
            if m.is_column[key] and columns.squares[p, key] > 0:
                update_weight(m, key, columns.sums[p, key], columns.squares[p, key], in_flight)
                update_factors(m, key, columns.factor_sums[p, key], columns.factor_squares[p, key], in_flight)


@compiled
def loss_of_rows(m: Any, rows: Any, columns: Any, both: Any) -> float:
    total = 0.0
    for row in range(rows.labels.size):
        z = score(m, rows, row, columns, both)
        total += np.log(1 + np.exp(-abs(z))) + max(z, 0.0) - rows.labels[row] * z
    return total


def make_machine(rows: Any, most_columns: int, rng: np.random.Generator) -> Machine:
    """A new machine for rows like these."""
    products = np.zeros(16_385, np.float32)
    mean_products(rows.offsets, rows.keys, rows.values, products)
    bent = np.zeros(FEATURES + 1)
    bent[: len(products) - 1], bent[-1] = products[:-1], products[-1]
    counts = np.bincount(rows.keys[rows.keys < HOT].astype(np.int64), minlength=HOT)
    is_column = counts >= LEAST_SHARE * rows.num_rows
    is_column[np.flatnonzero(is_column)[most_columns:]] = False
    factors = (INITIAL * rng.standard_normal((FEATURES + 1, FACTORS))).astype(np.float32)
    zeros = [np.zeros(FEATURES + 1, np.float32) for _ in range(3)]
    return Machine(zeros[0], factors, zeros[1], zeros[2], TOGETHER * CURVATURE * bent, is_column)


def test_loss(data: Path, programs: int, way: int, seed: int) -> float:
    """The test loss after some epochs; `programs` is 0 for one row at a time."""
    dataset, rng, trained = SparseDataset(data), np.random.default_rng(seed), 0
    most, per_program = (MOST_COLUMNS, ROWS_PER_PROGRAM) if programs else (0, 1)
    m, at_once = make_machine(dataset.block("train", 0), most, rng), max(1, programs)
    shapes = (HOT + 1,), (HOT, FACTORS), *((at_once, HOT + 1),) * 2, (at_once, HOT, FACTORS), (at_once, HOT + 1)
    columns = Columns(*map(np.zeros, shapes))
    slopes, both, gradients = np.zeros(at_once), np.zeros((at_once, FACTORS)), np.zeros(FACTORS)
    num_rows = dataset.split("train").rows
    for block in (b for _ in range(EPOCHS) for b in rng.permutation(len(dataset.split("train").blocks))):
        rows = dataset.block("train", int(block))
        places, at = rng.permutation(rows.num_rows), 0
        while at < len(places):
            launch = max(ROWS_PER_PROGRAM, min(LARGEST_LAUNCH, num_rows // FEWEST_LAUNCHES, trained // SHARE))
            launch = min(launch, len(places) - at)
            for start in range(at, at + launch, at_once * per_program):
                chosen = places[start : min(start + at_once * per_program, at + launch)]
                running = min(at_once, -(-len(chosen) // per_program))
                rest = rows, chosen, running, float(way * running), float(running * per_program) if way else 0.0
                train(m, *rest, columns, slopes, both, gradients)
            trained, at = trained + launch, at + launch
    columns.weights[:HOT], columns.weights[HOT], columns.factors[:] = m.weights[:HOT], m.weights[-1], m.factors[:HOT]
    blocks = [dataset.block("test", i) for i in range(len(dataset.split("test").blocks))]
    return float(sum(loss_of_rows(m, rows, columns, both[0]) for rows in blocks)) / dataset.split("test").rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=600_000)
    parser.add_argument("--programs", type=int, nargs="+", default=[264, 528], help="how many run at the same time")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where the data is kept; default: a temporary folder")
    parser.add_argument("--write", action="store_true", help="keep the table under benchmarks/results/")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        data = (options.folder or Path(temporary)) / f"interactions-{options.rows}"
        if not data.exists():
            generate_clicks(
                data, rows=options.rows, features=FEATURES, test_rows=options.rows // 10, seed=0, interactions=True,
                progress=lambda _: None,
            )  # fmt: skip

        def mean(programs: int, way: int) -> float:
            return statistics.mean(test_loss(data, programs, way, seed) for seed in range(options.seeds))

        text = (
            f"# Factors in flight, {datetime.now(UTC):%Y-%m-%d}\n\nA simulation on {machine()}. {options.rows:,} click "
            f"rows with interactions, {FEATURES:,} features, {FACTORS} factors, {EPOCHS} epochs, means of "
            f"{options.seeds} seeds; `python benchmarks/factors_in_flight.py`. Test loss by how rows of listed keys in "
            f"flight are counted. One row at a time: {mean(0, 1):.4f}.\n\n"
            f"| programs | {' | '.join(WAYS)} |\n|{'---|' * (1 + len(WAYS))}\n"
        )
        for programs in options.programs:
            text += f"| {programs} | {' | '.join(f'{mean(programs, way):.4f}' for way in WAYS.values())} |\n"
    print(text)
    if options.write:
        (HERE / "results" / f"{datetime.now(UTC):%Y-%m-%d}-factors-in-flight.md").write_text(text)


if __name__ == "__main__":
    main()
