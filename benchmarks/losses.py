"""How fast are the losses, compared with logistic regression, and what do weights of rows cost?

    python benchmarks/losses.py [--rows 1000000] [--rounds 5] [--write]

Each case trains on the same generated clicks, in its own process. In every round it runs right after logistic
regression with the same settings, and the ratio is the median over rounds. Weights are all 1: the model is the same.
`--write` makes a page in results/.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

import paceline
from embedded import HERE, machine
from one_core import paceline_rate
from paceline.data.sparse.dataset import SparseDataset
from paceline.data.synthetic import generate_clicks
from paceline.models.loss_entries import LOSSES
from paceline.models.registry import find

FEATURES = 5_000_000
PACES: dict[str, dict[str, Any]] = {
    "async, single rows": {"pace": "async", "batch_size": 1},
    "sync, batches of 100": {"pace": "sync", "batch_size": 100},
}
AT_LEAST = 0.9
WEIGHTED = "logistic, with weights"


def batches(dataset: SparseDataset, *, weighted: bool) -> Iterator[paceline.Batch]:
    """The training rows as a user would give them."""
    input_keys = dataset.key_order.to_blocks(np.arange(dataset.features, dtype=np.int32))
    for number in range(len(dataset.split("train").blocks)):
        block = dataset.block("train", number)
        weights = np.ones(block.num_rows, np.float32) if weighted else None
        yield paceline.Batch(
            block.labels.astype(np.float32), block.offsets, input_keys[block.keys], block.values, weights
        )


def make_data(folder: Path, rows: int) -> dict[bool, Path]:
    """The same rows without and with weights."""
    clicks = folder / "clicks"
    generate_clicks(clicks, rows=rows, features=FEATURES, test_rows=0, seed=0, progress=lambda _: None)
    found = {}
    for weighted in (False, True):
        found[weighted] = folder / f"weighted-{weighted}"
        paceline.prepare(batches(SparseDataset(clicks), weighted=weighted), found[weighted], progress=False)
    return found


def measure(data: dict[bool, Path], rounds: int) -> list[str]:
    """A table of all cases."""
    names = [*(name for name in find("linear").losses if name != "logistic" and LOSSES[name].task.name != "classes"),
             WEIGHTED]  # fmt: skip
    lines = ["| pace | loss | rows/s | logistic | ratio | at least 0.9 |", "|---|---|---|---|---|---|"]
    for title, pace in PACES.items():
        flags = {**pace, "workers": 1, "optimizer": "adagrad", "learning_rate": 0.02}
        for name in names:
            loss = "logistic" if name == WEIGHTED else name
            found: list[tuple[float, float]] = []
            for _ in range(rounds):
                base = paceline_rate(HERE.parent, data[False], {**flags, "loss": "logistic"})
                found.append((paceline_rate(HERE.parent, data[name == WEIGHTED], {**flags, "loss": loss}), base))
            ratio = statistics.median(rate / base for rate, base in found)
            rate, base = (statistics.median(column) for column in zip(*found, strict=True))
            # What weights cost where there are some is only told.
            holds = "–" if name == WEIGHTED else "yes" if ratio >= AT_LEAST else "**no**"
            lines.append(f"| {title} | {name} | {rate:,.0f} | {base:,.0f} | {ratio:.2f} | {holds} |")
            print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write the page in results/")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lines = measure(make_data(Path(folder), arguments.rows), arguments.rounds)
    today = date.today().isoformat()
    page = "\n".join([
        f"# Losses and weights, {today}", "", f"`python benchmarks/losses.py --rows {arguments.rows} --rounds "
        f"{arguments.rounds}`: {machine()}. {arguments.rows:,} click rows of 39 nonzeros, {FEATURES:,} features, "
        "AdaGrad, one worker. Ratios are medians over rounds, in which one ran right after the other.", "",
        *lines, "",
    ])  # fmt: skip
    print(page)
    if arguments.write:
        (HERE / "results" / f"{today}-losses.md").write_text(page)


if __name__ == "__main__":
    main()
