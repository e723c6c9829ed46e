"""Which rows do paceline and its peers train on, and how do the peers read them?

Generated clicks: one paceline dataset to measure with and one, with another seed, to tune on. Each is exported once for
the peers, with the keys of the input: arrays (`train/keys.npy`, …), LIBSVM text and Vowpal Wabbit's text.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embedded import FEATURES
from paceline.data.blocks.dataset import Split
from paceline.data.sparse.dataset import SparseDataset
from paceline.data.synthetic import generate_clicks

SPLITS: tuple[Split, Split] = ("train", "test")
DIGITS = 6
PIECE_ROWS = 20_000


class Data(NamedTuple):
    """How many training rows there are, a dataset of paceline's, and the folder of the same rows for its peers."""

    num_rows: int
    dataset: Path
    exported: Path


def make_data(folder: Path, rows: int) -> tuple[Data, Data]:
    """(data to measure with, data to tune on: half as many rows, of another seed); made if it is not there."""
    return _make(folder, "clicks", rows, seed=0), _make(folder, "tuning", rows // 2, seed=1)


def _make(folder: Path, name: str, rows: int, seed: int) -> Data:
    dataset, exported = folder / f"{name}-{rows}", folder / f"{name}-{rows}-exported"
    if not dataset.exists():
        generate_clicks(dataset, rows=rows, features=FEATURES, test_rows=rows // 10, seed=seed, progress=lambda _: None)
    if not exported.exists():
        partial = folder / f"{exported.name}-partial"
        shutil.rmtree(partial, ignore_errors=True)
        export(SparseDataset(dataset), partial)
        partial.rename(exported)
    return Data(rows, dataset, exported)


def export(dataset: SparseDataset, folder: Path) -> None:
    """Write the rows of a dataset whose rows all have as many nonzeros."""
    input_key = dataset.key_order.to_blocks(np.arange(dataset.features, dtype=np.int32))
    for split in SPLITS:
        blocks = [dataset.block(split, number) for number in range(len(dataset.split(split).blocks))]
        labels = np.concatenate([block.labels for block in blocks]).astype(np.float32)
        keys = np.concatenate([input_key[block.keys] for block in blocks]).astype(np.int64).reshape(len(labels), -1)
        values = np.concatenate([block.values for block in blocks]).astype(np.float32).reshape(len(labels), -1)
        order = np.argsort(keys, axis=1)
        keys, values = np.take_along_axis(keys, order, 1), np.take_along_axis(values, order, 1)
        (folder / split).mkdir(parents=True)
        for name, array in (("keys", keys), ("values", values), ("labels", labels)):
            np.save(folder / split / f"{name}.npy", array)
        with (folder / f"{split}.libsvm").open("w") as libsvm, (folder / f"{split}.vw").open("w") as wabbit:
            for libsvm_line, wabbit_line in text_lines(keys, values, labels):
                libsvm.write(libsvm_line)
                wabbit.write(wabbit_line)


def text_lines(
    keys: NDArray[np.int64], values: NDArray[np.float32], labels: NDArray[np.float32]
) -> Iterator[tuple[str, str]]:
    """Each row as a line of LIBSVM, whose keys count from 1, and of Vowpal Wabbit, where a value of 1 is omitted."""
    for first in range(0, len(labels), PIECE_ROWS):
        piece = slice(first, first + PIECE_ROWS)
        for row_keys, row_values, label in zip(
            keys[piece].tolist(), values[piece].tolist(), labels[piece].tolist(), strict=True
        ):
            pairs = [
                (key, "" if value == 1 else f":{value:.{DIGITS}g}")
                for key, value in zip(row_keys, row_values, strict=True)
            ]
            libsvm = " ".join([f"{key + 1}{value or ':1'}" for key, value in pairs])
            wabbit = " ".join([f"{key}{value}" for key, value in pairs])
            yield f"{label:.0f} {libsvm}\n", f"{'1' if label else '-1'} | {wabbit}\n"
