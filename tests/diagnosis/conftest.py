"""The simulator with fewer steps, where a test does not ask for the last percent."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from paceline.diagnosis import verdict
from paceline.diagnosis.simulator import Demand, Layout, Rules, simulate

FEW_STEPS = 60


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorter replays, and fewer of them for an interval."""

    def shorter(demands: Sequence[Sequence[Demand]], layout: Layout, rules: Rules, steps: int, seed: int) -> float:
        return simulate(demands, layout, rules, min(steps, FEW_STEPS), seed)

    monkeypatch.setattr(verdict, "simulate", shorter)
    monkeypatch.setattr(verdict, "RESAMPLES", 2)
