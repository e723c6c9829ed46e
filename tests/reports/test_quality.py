"""Whether a model still improves, has converged or overfits."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.reports.quality import CONVERGED, IMPROVING, OVERFITTING, UNKNOWN, quality_of


def curve(*losses: float, rows: str = "test", **more: float) -> list[dict[str, Any]]:
    return [
        {"rows": 1_000 * place, "train_loss": 0.5 / place, f"{rows}_loss": loss, **more}
        for place, loss in enumerate(losses, 1)
    ]


@pytest.mark.parametrize(
    ("losses", "state"),
    [
        ((0.6, 0.5, 0.45, 0.4, 0.36, 0.33, 0.3, 0.27), IMPROVING),
        ((0.6, 0.45, 0.41, 0.40, 0.40, 0.40, 0.40, 0.3999), CONVERGED),
        ((0.6, 0.4, 0.35, 0.36, 0.4, 0.45, 0.5, 0.55), OVERFITTING),
        ((0.4,), UNKNOWN),
        ((-1.0, -1.5, -1.6, -1.6, -1.6, -1.6, -1.6, -1.6), CONVERGED),
    ],
)
def test_the_state_is_that_of_the_curve(losses: tuple[float, ...], state: str) -> None:
    for rows in ("test", "validation"):
        found = quality_of(curve(*losses, rows=rows))
        assert found is not None
        assert found.state == state
        assert found.sentence.lower().startswith(state)
        assert f"{rows} loss" in found.sentence


def test_a_loss_is_compared_with_the_best_constant() -> None:
    found = quality_of(curve(0.45, test_baseline_loss=0.6))
    assert found is not None
    assert found.sentence == "The test loss, 0.4500, is 25% below that of the best constant prediction, 0.6000."
    worse = quality_of(curve(0.7, test_baseline_loss=0.6))
    assert worse is not None
    assert "is no better than" in worse.sentence


def test_without_evaluations_there_is_nothing_to_say() -> None:
    assert quality_of([]) is None
