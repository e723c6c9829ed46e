"""The simulator with fewer steps, where a test does not ask for the last percent."""

from __future__ import annotations

import pytest

from paceline.diagnosis import verdict
from paceline.diagnosis.simulator import Demands, PaceRules, Topology, simulate

FEW_STEPS = 60


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorter replays, and fewer of them for an interval."""

    def shorter(demands: Demands, topology: Topology, rules: PaceRules, steps: int, seed: int) -> float:
        return simulate(demands, topology, rules, min(steps, FEW_STEPS), seed)

    monkeypatch.setattr(verdict, "simulate", shorter)
    monkeypatch.setattr(verdict, "RESAMPLES", 2)
