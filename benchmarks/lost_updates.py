"""How many updates does pace async lose? Workers share weights without locks, so one may overwrite another's update.

    python benchmarks/lost_updates.py [--workers 2,4] [--batch-sizes 1,64] [--rounds 3] [--write]

The rows are generated clicks whose labels are all 0 and whose values are all 1, and the learning rate is so small that
every nonzero changes its weight by exactly the same amount. The sum of all weights then counts the updates that
arrived. Prints one JSON line per measurement, then a table; `--write` keeps it under benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

import paceline
from embedded import machine
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.dataset import SparseDataset, sparse_writer
from paceline.data.synthetic import generate_clicks

FEATURES, ROWS, EPOCHS = 33_762_578, 512_000, 4
# Half of it is added per nonzero. float32 counts exactly up to 2**24 updates of one key. The number of rows is a
# multiple of the batch sizes: the rows of a smaller last batch would count more.
RATE = 2.0**-60


def make_data(folder: Path) -> tuple[Path, int]:
    """The data, and its number of nonzeros."""
    clicks, out = folder / "clicks", folder / "ones"
    generate_clicks(clicks, rows=ROWS, features=FEATURES, test_rows=100, seed=0, progress=lambda _: None)
    dataset = SparseDataset(clicks)
    input_key, nonzeros = dataset.key_order.to_blocks(np.arange(FEATURES, dtype=np.uint32)), 0
    with sparse_writer(out, features=FEATURES, source={}) as writer:
        for i in range(len(dataset.split("train").blocks)):
            block = dataset.block("train", i)
            keys = input_key[block.keys]
            nonzeros += len(keys)
            writer.add("train", Batch(np.zeros_like(block.labels), block.offsets, keys, np.ones(len(keys), np.float32)))
        writer.finish()
    return out, nonzeros


def lost_share(data: Path, nonzeros: int, workers: int, batch_size: int) -> tuple[float, float]:
    """The share of updates that did not arrive, and rows per second."""
    with tempfile.TemporaryDirectory() as folder:
        run = paceline.train(
            data=data, run=Path(folder, "run"), pace="async", workers=workers, batch_size=batch_size, epochs=EPOCHS,
            optimizer="sgd", learning_rate=RATE, checkpoint_every=0,
        )  # fmt: skip
        weights, result = paceline.load(run.path).weights.astype(np.float64), run.result
    arrived = -float(weights.sum()) / (RATE / 2 / batch_size)
    return 1 - arrived / (EPOCHS * nonzeros), result["rows_per_second"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--batch-sizes", default="1,64")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="keep the table under benchmarks/results/")
    options = parser.parse_args()
    table = (
        f"# Lost updates at pace async, {datetime.now(UTC):%Y-%m-%d}\n\n"
        f"{machine()}. `python benchmarks/lost_updates.py --workers {options.workers} "
        f"--batch-sizes {options.batch_sizes}`: {ROWS:,} rows × {EPOCHS} epochs, {FEATURES:,} features, threads of one "
        f"process, highest of {options.rounds} rounds.\n\n"
        f"| workers | batch size | updates lost | rows/s |\n|---|---|---|---|\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        data, nonzeros = make_data(Path(folder))
        for batch_size in map(int, options.batch_sizes.split(",")):
            for workers in map(int, options.workers.split(",")):
                found = [lost_share(data, nonzeros, workers, batch_size) for _ in range(options.rounds)]
                share, rate = max(found)
                print(json.dumps({"workers": workers, "batch_size": batch_size, "lost": share}), flush=True)
                table += f"| {workers} | {batch_size} | {share:.4%} | {rate:,.0f} |\n"
                if workers == 1 and share != 0:
                    sys.exit("error: one worker seems to lose updates, so the measurement is wrong")
    print(table)
    if options.write:
        (Path(__file__).parent / "results" / f"{datetime.now(UTC):%Y-%m-%d}-lost-updates.md").write_text(table)


if __name__ == "__main__":
    main()
