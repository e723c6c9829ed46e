"""Trained models of every kind over sparse rows, and rows to try them on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import paceline
from paceline.data.sparse.batch import Batch
from paceline.data.sparse.dataset import sparse_writer
from paceline.models.trained import TrainedModel

ROWS, FEATURES, FIELDS = 1_200, 40, 4


def make_rows(labels: str = "two-classes", seed: int = 3) -> Batch:
    """Rows with a field per nonzero. Key 0 is in every row and far from 0, key 1 is large, and others are about 1."""
    rng = np.random.default_rng(seed)
    keys = np.concatenate(
        [
            np.zeros((ROWS, 1), np.int64),
            np.sort(2 + np.argsort(rng.random((ROWS, FEATURES - 2)), axis=1)[:, :5], axis=1),
        ],
        axis=1,
    )
    keys[::3, 1] = 1
    values = rng.normal(1, 0.4, keys.shape)
    values[:, 0] = rng.normal(900, 20, ROWS)
    values[keys == 1] *= 300
    hidden = rng.normal(size=FEATURES)
    score = hidden[keys[:, 1:]].sum(axis=1) + (values[:, 0] - 900) / 20
    stored: dict[str, Any] = {
        "two-classes": (score > 0).astype(np.uint8),
        "classes": np.digitize(score, [-1, 1]).astype(np.uint16),
        "numbers": (3 + score).astype(np.float32),
        "counts": rng.poisson(np.exp(np.clip(score, -2, 2))).astype(np.float32),
    }
    return Batch(
        stored[labels], np.arange(ROWS + 1, dtype=np.int64) * keys.shape[1], keys.reshape(-1).astype(np.uint32),
        values.reshape(-1).astype(np.float32), None, (keys.reshape(-1) % FIELDS).astype(np.uint16),
    )  # fmt: skip


def write_rows(folder: Path, labels: str = "two-classes", fields: bool = False) -> Path:
    """A dataset of such rows, whose values are scaled."""
    kind: Any = "numbers" if labels == "counts" else labels
    names = tuple(f"C{i}" for i in range(FIELDS)) if fields else ()
    rows = make_rows(labels)._replace(fields=make_rows().fields if fields else None)
    with sparse_writer(
        folder, features=FEATURES, source={"format": "made"}, labels=kind, fields=names, scale="auto"
    ) as writer:
        writer.add("train", rows.copy())
        writer.finish()
    return folder


def train(tmp_path: Path, labels: str = "two-classes", fields: bool = False, **flags: Any) -> paceline.Run:
    """A run on such rows."""
    data = write_rows(tmp_path / "data", labels, fields)
    usual: dict[str, Any] = {"workers": 1, "pace": "sync", "epochs": 3}
    return paceline.train(data=data, run=tmp_path / "run", progress=False, **(usual | flags))


def predicted(model: TrainedModel, rows: Any) -> NDArray[Any]:
    """What an exported model must predict: of two classes, the probability of label 1."""
    return model.model.output.probabilities(model.decision_function(rows))


def padded(rows: Batch, padding: int = -1) -> dict[str, NDArray[Any]]:
    """Rows as an ONNX model takes them, some longer than they are."""
    lengths = np.diff(rows.offsets)
    inside = np.arange(lengths.max() + 2) < lengths[:, None]
    made: dict[str, NDArray[Any]] = {
        "ids": np.full(inside.shape, padding, np.int64),
        "values": np.zeros(inside.shape, np.float32),
    }
    made["ids"][inside], made["values"][inside] = rows.keys, rows.values
    if rows.fields is not None:
        made["fields"] = np.zeros(inside.shape, np.int64)
        made["fields"][inside] = rows.fields
    return made
