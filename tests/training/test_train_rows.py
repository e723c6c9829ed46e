"""`train_rows`: the first rows of the data, and no others, are what a run learns from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import paceline
from paceline.data.blocks.reader import Reader
from paceline.data.rows import EpochOrder
from paceline.data.sparse.dataset import SparseDataset
from paceline.errors import ConfigError


def test_an_epoch_has_the_first_rows_and_no_others(clicks: Path) -> None:
    whole, part = SparseDataset(clicks), SparseDataset(clicks)
    blocks = whole.split("train").blocks
    rows = blocks[0].rows + 7 if len(blocks) > 1 else blocks[0].rows - 7
    part.keep_first(rows)
    assert part.split("train").rows == rows
    order = EpochOrder([block.rows for block in part.split("train").blocks], seed=3)
    read = Reader(part, order).batch(np.arange(rows))
    labels = np.concatenate([whole.block("train", number).labels for number in range(len(blocks))])[:rows]
    keys = np.concatenate([whole.block("train", number).keys for number in range(len(blocks))])
    ends = np.cumsum(np.concatenate([np.diff(whole.block("train", number).offsets) for number in range(len(blocks))]))
    assert sorted(read.labels.tolist()) == sorted(labels.tolist())
    assert sorted(read.keys.tolist()) == sorted(keys[: ends[rows - 1]].tolist())
    assert part.split("test") == whole.split("test")


@pytest.mark.parametrize("pace", ["sync", "async"])
def test_a_run_counts_them(clicks: Path, tmp_path: Path, pace: str) -> None:
    run = paceline.train(data=clicks, run=tmp_path / "run", pace=pace, train_rows=150, epochs=2, batch_size=10)
    assert run.result["rows"] == 300


def test_softmax_too(drawings: Path, tmp_path: Path) -> None:
    run = paceline.train(data=drawings, run=tmp_path / "run", model="softmax", train_rows=30, epochs=3, batch_size=10)
    assert run.result["rows"] == 90


def test_more_than_there_are(clicks: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"`train_rows` is 1,000,000,000; .* training rows"):
        paceline.train(data=clicks, run=tmp_path / "run", train_rows=10**9)
    assert not (tmp_path / "run").exists()
