"""Does the default learning rate suit labels of any size? Test R² on scikit-learn's diabetes, with and without units.

    python benchmarks/label_units.py [--epochs 20]

Labels have a mean of 152 and a deviation of 77; they are also tried divided by 77 and times 1,000. Columns have a
deviation of 1. "Without" means a bias that starts at 0 and a learning rate as given (decision 0028). Prints a table in
Markdown.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from sklearn.datasets import load_diabetes

import paceline
from paceline.data.blocks.dataset import Split
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.dataset import sparse_writer
from paceline.errors import PacelineError
from paceline.models import linear
from paceline.models.losses import PLAIN

FACTORS = {"labels / 77": 1 / 77, "labels": 1.0, "labels × 1,000": 1_000.0}
CASES = [(loss, optimizer) for loss in ("squared", "quantile", "poisson") for optimizer in ("adagrad", "ftrl", "sgd")]


def write(folder: Path, factor: float) -> Path:
    """The rows as a dataset; a fifth are for testing."""
    data = load_diabetes()
    order = np.random.default_rng(0).permutation(len(data.target))
    values, labels = data.data[order] * len(order) ** 0.5, (data.target[order] * factor).astype(np.float32)
    columns, cut = values.shape[1], len(order) * 4 // 5
    with sparse_writer(folder, features=columns, source={}, labels="numbers") as writer:
        parts: dict[Split, slice] = {"train": slice(cut), "test": slice(cut, None)}
        for split, part in parts.items():
            count = len(labels[part])
            keys = np.tile(np.arange(columns, dtype=np.uint32), count)
            offsets = np.arange(count + 1, dtype=np.int64) * columns
            writer.add(split, Batch(labels[part], offsets, keys, values[part].astype(np.float32).reshape(-1)))
        writer.finish()
    return folder


def r2(data: Path, run: Path, **flags: Any) -> str:
    """The test R² of a run, or that it failed."""
    try:
        found = paceline.train(data=data, run=run, workers=1, **flags).result["test"]["r2"]
    except PacelineError:
        return "diverged"
    return f"{found:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    epochs = parser.parse_args().epochs
    print("| loss, optimizer | " + " | ".join(f"{name}: without | with" for name in FACTORS) + " |")
    print("|---" * (1 + 2 * len(FACTORS)) + "|")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        data = {name: write(folder / f"data-{place}", factor) for place, (name, factor) in enumerate(FACTORS.items())}
        for loss, optimizer in CASES:
            cells: list[str] = []
            for name in FACTORS:
                flags = {"loss": loss, "optimizer": optimizer, "epochs": epochs}
                run = folder / f"{loss}-{optimizer}-{len(cells)}-{name[-1]}"
                with mock.patch.object(linear, "scales_of", return_value=PLAIN):
                    cells.append(r2(data[name], Path(f"{run}-without"), **flags))
                cells.append(r2(data[name], Path(f"{run}-with"), **flags))
            print(f"| {loss}, {optimizer} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
