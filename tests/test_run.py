"""A run as a whole: `train_rows`, the first rows of the data, and no others, are what it learns from."""

from __future__ import annotations

from pathlib import Path

import pytest

import paceline
from paceline.errors import ConfigError


@pytest.mark.parametrize("pace", ["sync", "async"])
def test_a_run_counts_the_first_rows_alone(clicks: Path, tmp_path: Path, pace: str) -> None:
    run = paceline.train(data=clicks, run=tmp_path / "run", pace=pace, train_rows=150, epochs=2, batch_size=10)
    assert run.result["rows"] == 300


def test_a_dense_model_does_too(drawings: Path, tmp_path: Path) -> None:
    run = paceline.train(data=drawings, run=tmp_path / "run", model="softmax", train_rows=30, epochs=3, batch_size=10)
    assert run.result["rows"] == 90


def test_more_rows_than_there_are(clicks: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"`train_rows` is 1,000,000,000; .* training rows"):
        paceline.train(data=clicks, run=tmp_path / "run", train_rows=10**9)
    assert not (tmp_path / "run").exists()
