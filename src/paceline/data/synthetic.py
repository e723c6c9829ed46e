"""How is click data generated that behaves like Criteo's?

A row has 39 nonzeros: 13 log-scaled numbers, and 26 categories whose vocabularies have the sizes of Criteo's, scaled to
the number of features. Within a vocabulary, ranks are log-uniform: a few keys occur in most rows, most keys in hardly
any. With the skew `criteo`, the hottest keys of all are as hot as in Criteo's data. A hidden logistic model draws the
labels, so there is something to learn, and a best possible loss. With interactions, the hidden model is a factorization
machine, which no linear model can follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.data.blocks.dataset import Split
from paceline.data.blocks.files import BLOCK_ROWS, R
from paceline.data.blocks.writer import D, DatasetWriter
from paceline.data.limits import NO_LIMIT, SKEW_NAMES, SkewName, check_choices, check_limits
from paceline.data.pipeline import parse_in_order
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.dataset import SparseDataset, sparse_writer
from paceline.kernels.synthetic import Skew, fill_clicks

NUM_NUMBERS = 13
CRITEO_VOCABULARIES = (
    10131227, 8351593, 5461306, 7046547, 2202608, 286181, 142572, 93145, 25000, 14992, 12517, 10000, 5683, 5652, 3194,
    2173, 1460, 633, 583, 305, 105, 27, 24, 18, 15, 4,
)  # fmt: skip
SMALLEST_VOCABULARY = 3
FEWEST_FEATURES = NUM_NUMBERS + SMALLEST_VOCABULARY * len(CRITEO_VOCABULARIES)
# Fitted to Criteo: of all nonzeros, its hottest 10, 100, 1,000 and 10,000 keys have 25, 64, 77 and 89 %.
HIDDEN_FACTORS = 3
# Of interactions: their sum varies about half as much as that of the weights.
STRENGTH = 0.1
FIELDS = (*(f"I{i + 1}" for i in range(NUM_NUMBERS)), *(f"C{i + 1}" for i in range(len(CRITEO_VOCABULARIES))))
SKEWS: dict[SkewName, Skew] = {"log-uniform": Skew(0.0, 1.0, 0.0), "criteo": Skew(1.0, 1.2, -0.284)}


def generate_clicks(
    out: Path | str,
    *,
    rows: int,
    features: int,
    test_rows: int,
    seed: int,
    progress: Callable[[int], None],
    skew: SkewName = "log-uniform",
    interactions: bool = False,
    fields: bool = False,
) -> SparseDataset:
    """Write a dataset of generated clicks; `progress` is called with the number of rows so far.

    With `fields`, it keeps the column of each nonzero.
    """
    check_limits(
        ("rows", rows, 1, NO_LIMIT, "--rows 1000000"),
        ("test-rows", test_rows, 0, NO_LIMIT, "--test-rows 1000"),
        ("features", features, FEWEST_FEATURES, 1 << 32, "--features 33762578 is Criteo's"),
        ("seed", seed, 0, NO_LIMIT, "--seed 0"),
    )
    check_choices(("skew", skew, SKEW_NAMES, "criteo makes the hottest keys as hot as Criteo's"))
    source: dict[str, Any] = {"format": "clicks", "seed": seed, "rows": rows, "test_rows": test_rows}
    source |= {"skew": skew} if skew != "log-uniform" else {}
    source |= {"interactions": True} if interactions else {}
    strength = STRENGTH if interactions else 0.0

    def make(part: tuple[Split, int, int]) -> tuple[Split, Batch]:
        split, batch = _make(part, features, seed, SKEWS[skew], strength)
        kept = np.tile(np.arange(len(FIELDS), dtype=np.uint16), batch.num_rows) if fields else None
        return split, batch._replace(fields=kept)

    made = parse_in_order(parts(rows, test_rows, BLOCK_ROWS), make)
    writer = sparse_writer(out, features=features, source=source, fields=FIELDS if fields else ())
    return write_all(writer, made, progress)


def write_all(writer: DatasetWriter[R, D], made: Iterator[tuple[Split, R]], progress: Callable[[int], None]) -> D:
    """Write generated rows, and open the dataset."""
    written = 0
    with writer:
        for split, rows in made:
            writer.add(split, rows)
            written += rows.num_rows
            progress(written)
        return writer.finish()


def parts(rows: int, test_rows: int, rows_per_part: int) -> Iterator[tuple[Split, int, int]]:
    """(split, first row, number of rows); test rows are numbered after the training rows."""
    for split, first, last in (("train", 0, rows), ("test", rows, rows + test_rows)):
        for start in range(first, last, rows_per_part):
            yield split, start, min(rows_per_part, last - start)  # type: ignore[misc]


def _make(part: tuple[Split, int, int], features: int, seed: int, skew: Skew, strength: float) -> tuple[Split, Batch]:
    split, first, num_rows = part
    sizes = vocabularies(features)
    nonzeros = NUM_NUMBERS + len(sizes)
    keys = np.empty(num_rows * nonzeros, np.uint32)
    values = np.empty(num_rows * nonzeros, np.float32)
    labels = np.empty(num_rows, np.uint8)
    logs, factors = np.empty(len(sizes), np.float64), np.empty(HIDDEN_FACTORS, np.float64)
    fill_clicks(seed, first, NUM_NUMBERS, sizes, skew, strength, logs, factors, keys, values, labels)
    return split, Batch(labels, np.arange(num_rows + 1, dtype=np.int64) * nonzeros, keys, values)


def vocabularies(features: int) -> NDArray[np.int64]:
    """The sizes of the 26 vocabularies: with the 13 numbers they add up to `features`."""
    sizes = np.array(CRITEO_VOCABULARIES, np.float64)
    spare = features - FEWEST_FEATURES
    shares: NDArray[np.int64] = np.floor(sizes / sizes.sum() * spare).astype(np.int64)
    shares[0] += spare - shares.sum()
    return shares + SMALLEST_VOCABULARY
