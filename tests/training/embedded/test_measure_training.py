"""What workers cost each other is measured by training with them."""

from __future__ import annotations

import math

import pytest

from paceline.telemetry.ceilings import TrainingSpeed
from paceline.training.embedded import measure_training as measuring
from paceline.training.embedded.measure_training import Amount, has_all_cases, measure_training

LITTLE = Amount(rows=2_000, features=10_000, windows=1)


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "num_cores", lambda: 2)


def test_every_case_with_every_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "MOST_OTHERS", math.inf)
    monkeypatch.setattr(measuring, "CASES", [("async", 1), ("sync", 100), ("4", 100)])
    said: list[str] = []
    found = measure_training(said.append, LITTLE)
    assert [(one.pace, one.workers, one.batch_size) for one in found] == [
        ("async", 1, 1), ("sync", 1, 100), ("4", 1, 100), ("async", 2, 1), ("sync", 2, 100), ("4", 2, 100),
    ]  # fmt: skip
    assert all(isinstance(one, TrainingSpeed) and one.rows_per_second > 0 for one in found)
    assert said[-1] == "training, 2 workers"
    assert has_all_cases(found)


def test_nothing_is_told_from_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "MOST_OTHERS", -math.inf)
    monkeypatch.setattr(measuring, "CASES", [("async", 100)])
    found = measure_training(lambda _: None, LITTLE)
    assert found == []
    assert not has_all_cases(found)
