"""Sixteen workers at pace async learn as well as one, with every optimizer, even if they share a few cores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline.data.synthetic import generate_clicks
from paceline.models.registry import MODELS

RATES = {"sgd": 0.05}


@pytest.fixture(scope="module")
def many_clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("many") / "clicks"
    generate_clicks(out, rows=200_000, features=100_000, test_rows=20_000, seed=3, progress=lambda _: None)
    return out


@pytest.mark.parametrize("batch_size", [1, 100])
@pytest.mark.parametrize("optimizer", MODELS["linear"].optimizers)
def test_the_loss_is_within_two_percent(tmp_path: Path, many_clicks: Path, optimizer: str, batch_size: int) -> None:
    def loss_of(workers: int) -> float:
        more: dict[str, Any] = {"learning_rate": RATES[optimizer]} if optimizer in RATES else {}
        run = paceline.train(
            data=many_clicks, run=tmp_path / str(workers), pace="async", workers=workers, batch_size=batch_size,
            optimizer=optimizer, epochs=4, checkpoint_every=0, **more,
        )  # fmt: skip
        return float(run.result["test"]["loss"])

    assert loss_of(16) <= 1.02 * loss_of(1)
