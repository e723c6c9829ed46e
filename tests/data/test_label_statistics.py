"""Statistics of labels, against NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from paceline.data import label_statistics
from paceline.data.blocks import files as block_files
from paceline.data.label_statistics import LabelStatistics, combine, sum_numbers
from paceline.data.labels import Labels
from paceline.data.sources import files
from paceline.data.sparse.dataset import SparseDataset
from tests.data.inputs import run, write


def statistics_of(dataset: SparseDataset) -> LabelStatistics:
    found = SparseDataset(dataset.folder.name).manifest.label_statistics
    assert found is not None
    return found


def make(tmp_path: Path, numbers: Any, weights: Any = None, **settings: Any) -> LabelStatistics:
    said = numbers if weights is None else [f"{label}:{weight}" for label, weight in zip(numbers, weights, strict=True)]
    path = write(tmp_path / "a", "".join(f"{label} 1:1\n" for label in said))
    return statistics_of(run(tmp_path, path, **settings).dataset)


@pytest.mark.parametrize("kind", ["two-classes", "classes"])
def test_rows_and_weights_of_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    monkeypatch.setattr(block_files, "BLOCK_ROWS", 2)
    labels = [1, 0, 1, 1, 0] if kind == "two-classes" else [7, 3, 7, 3, 9]
    counts = (2, 3) if kind == "two-classes" else (2, 2, 1)
    assert make(tmp_path, labels, labels=kind) == LabelStatistics(rows=counts, weights=counts)
    weighted = make(tmp_path, labels, [0.5, 1, 2, 4, 8], labels=kind)
    assert weighted.rows == counts
    assert weighted.weights == ((9, 6.5) if kind == "two-classes" else (5, 2.5, 8))


@pytest.mark.parametrize("weighted", [False, True])
def test_statistics_of_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weighted: bool) -> None:
    monkeypatch.setattr(block_files, "BLOCK_ROWS", 100)
    random = np.random.default_rng(1)
    labels = (1e6 + random.normal(size=1_050)).astype(np.float32)
    weights = random.integers(0, 4, 1_050) if weighted else None
    made = []
    for chunk_bytes in (500, 1 << 20):
        monkeypatch.setattr(files, "CHUNK_BYTES", chunk_bytes)
        made.append(make(tmp_path, labels, weights, labels="numbers"))
    assert made[0] == made[1]
    repeated = labels.astype(np.float64) if weights is None else np.repeat(labels.astype(np.float64), weights)
    assert made[0].mean == pytest.approx(repeated.mean(), rel=1e-12)
    assert made[0].deviation == pytest.approx(repeated.std(), rel=1e-9)
    assert (made[0].least, made[0].largest) == (labels.min(), labels.max())
    places = (np.arange(1, 100) * len(repeated) + 99) // 100 - 1  # exact, which shares in floating point are not
    assert made[0].quantiles[1:-1] == tuple(np.sort(repeated)[places].tolist())


def test_quantiles_of_many_blocks_are_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_statistics, "EXACT_BLOCKS", 2)
    labels = np.random.default_rng(2).permutation(40 * 1_000).astype(np.float32)
    blocks = [sum_numbers(piece, None, index) for index, piece in enumerate(np.split(labels, 40))]
    assert sum(len(block.sample[0]) for block in blocks) < 10_000
    found = combine(blocks, Labels("numbers", ()))
    assert found.quantiles == pytest.approx(np.linspace(0, 40_000, 101), abs=1_000)
    assert (found.least, found.largest) == (0, 39_999)


@pytest.mark.parametrize(
    "wrong",
    [
        {"mean": float("nan")},
        {"deviation": -1.0},
        {"rows": (-1,)},
        {"weights": (-1.0,)},
        {"quantiles": (1.0, 2.0)},
        {"quantiles": tuple(range(101, 0, -1))},
    ],
)
def test_statistics_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="labels"):
        LabelStatistics(**wrong)


def test_statistics_fit_the_labels(tmp_path: Path) -> None:
    found = make(tmp_path, [1, 0])
    manifest = run(tmp_path, tmp_path / "a", labels="numbers").dataset.manifest
    with pytest.raises(ValueError, match="statistics of 2 classes for 0"):
        msgspec.structs.replace(manifest, label_statistics=found)
