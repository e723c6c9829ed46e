"""What workers cost each other is measured by training with them."""

from __future__ import annotations

import pytest

from paceline.telemetry.ceilings import TrainingSpeed
from paceline.training.embedded import measure_training as measuring
from paceline.training.embedded.measure_training import Amount, measure_training

LITTLE = Amount(rows=2_000, features=10_000, windows=1)


def test_every_case_with_every_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "num_cores", lambda: 2)
    monkeypatch.setattr(measuring, "CASES", [("async", 1), ("sync", 100), ("4", 100)])
    said: list[str] = []
    found = measure_training(said.append, LITTLE)
    assert [(one.pace, one.workers, one.batch_size) for one in found] == [
        ("async", 1, 1), ("sync", 1, 100), ("4", 1, 100), ("async", 2, 1), ("sync", 2, 100), ("4", 2, 100),
    ]  # fmt: skip
    assert all(isinstance(one, TrainingSpeed) and one.rows_per_second > 0 for one in found)
    assert said[-1] == "training, 2 workers"
