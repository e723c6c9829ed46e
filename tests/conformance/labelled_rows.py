"""Small datasets of sparse rows with labels of every kind, which a linear model can learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from paceline.data.blocks.dataset import Split
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.dataset import sparse_writer

FEATURES, ROWS, TEST_ROWS, NONZEROS, CLASSES = 120, 2_000, 600, 6, 4
# Which labels each loss is tried on.
DATA_OF_LOSS = {
    "logistic": "two-classes", "hinge": "two-classes", "squared-hinge": "two-classes", "squared": "numbers",
    "huber": "numbers", "quantile": "numbers", "poisson": "counts", "softmax": "classes",
}  # fmt: skip


def make_rows(kind: str, seed: int = 7, weighted: bool = False) -> tuple[Batch, Batch]:
    """Training and test rows whose labels are of this kind, or counts."""
    rng = np.random.default_rng(seed)
    count = ROWS + TEST_ROWS
    keys = np.argsort(rng.random((count, FEATURES)), axis=1)[:, :NONZEROS]
    values = rng.normal(1, 0.3, keys.shape)
    hidden = rng.normal(size=(FEATURES, CLASSES))
    scores = (hidden[keys] * values[..., None]).sum(axis=1) / NONZEROS**0.5
    labels = _labels(kind, scores, rng)
    weights = rng.integers(0, 4, count).astype(np.float32) if weighted else None
    offsets = np.arange(count + 1, dtype=np.int64) * NONZEROS
    rows = Batch(labels, offsets, keys.reshape(-1).astype(np.uint32), values.reshape(-1).astype(np.float32), weights)
    return rows.slice(0, ROWS), rows.slice(ROWS, count)


def _labels(kind: str, scores: Any, rng: np.random.Generator) -> Any:
    first = scores[:, 0]
    if kind == "two-classes":
        return (rng.random(len(first)) < 1 / (1 + np.exp(-3 * first))).astype(np.uint8)
    if kind == "classes":
        return (3 * scores + rng.gumbel(size=scores.shape)).argmax(axis=1).astype(np.uint16)
    if kind == "counts":
        return rng.poisson(np.exp(1 + first / 2)).astype(np.float32)
    # Far from 0, and in a unit of their own: the default learning rate must do.
    return (15_000 + 700 * (first + 0.2 * rng.normal(size=len(first)))).astype(np.float32)


def write_rows(folder: Path, kind: str, weighted: bool = False) -> Path:
    """A dataset of such rows."""
    train, test = make_rows(kind, weighted=weighted)
    stored: Any = "numbers" if kind == "counts" else kind
    with sparse_writer(folder, features=FEATURES, source={}, labels=stored) as writer:
        splits: list[tuple[Split, Batch]] = [("train", train), ("test", test)]
        for split, rows in splits:
            writer.add(split, rows.copy())
        writer.finish()
    return folder
