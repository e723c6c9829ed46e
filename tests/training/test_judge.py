"""Has a run diverged, is its model worse than a constant, and has it overfitted?"""

from __future__ import annotations

from typing import Any

import pytest

from paceline.models.losses import LabelUnits, Scales
from paceline.training.best import Best
from paceline.training.judge import Beginning, Standing, found_in, has_diverged, is_good, why_worse

ZERO, UNKNOWN = Beginning(0.7), Beginning(0.7, is_known=False)


class FakeModel:
    """What is asked of a model."""

    start_loss = 0.7
    knows_start = True
    label_units = LabelUnits()


MODEL: Any = FakeModel()


@pytest.mark.parametrize(
    ("losses", "began", "diverged"),
    [
        ([6e8, 5e8, 4e8], ZERO, True),
        ([19.0, 16.0, 12.6], ZERO, True),
        ([6.9], ZERO, False),
        ([7.1], ZERO, True),
        ([9e9, 0.6], ZERO, False),
        ([19.0, 16.0, 12.6], UNKNOWN, False),
        ([19.0, 20.0, 12.6], UNKNOWN, True),
        ([12.6], UNKNOWN, True),
        ([6e8, 5e8, 4e8], UNKNOWN, True),
    ],
)
def test_a_loss_far_above_a_constant_has_diverged_even_if_it_falls(
    losses: list[float], began: Beginning, diverged: bool
) -> None:
    assert has_diverged(losses, 0.69, began) == diverged


def test_a_constant_may_have_no_loss_or_less() -> None:
    assert not has_diverged([1e-9], 0.0, Beginning(0.0))
    assert not has_diverged([5.0], -3.0, Beginning(-3.0))
    assert has_diverged([50.0], -3.0, Beginning(-3.0))
    # Under the loss `poisson`, counts with a mean of e have a baseline of 0.
    counts = FakeModel()
    counts.start_loss, counts.label_units = 0.001, LabelUnits(Scales(1.0, 1.0, 2.7, 9.0))
    assert not has_diverged([0.5], 0.001, Beginning.of(counts, goes_on=False))  # type: ignore[arg-type]


def test_the_first_values_of_some_models_may_be_anything() -> None:
    assert Beginning.of(MODEL, goes_on=False).is_known
    assert not Beginning.of(MODEL, goes_on=True).is_known


def test_rows_by_which_a_run_is_judged() -> None:
    line = {"train_loss": 0.2, "validation_loss": 0.4, "validation_baseline_loss": 0.6, "test_loss": 0.5}
    assert found_in(line | {"test_baseline_loss": 0.65}, 0.7) == Standing("test", 0.5, 0.65, 0.2)
    del line["test_loss"]
    assert found_in(line, 0.7) == Standing("validation", 0.4, 0.6, 0.2)
    assert found_in({"train_loss": 0.2}, 0.7) == Standing("train", 0.2, 0.7)
    assert found_in({"train_loss": None}, 0.7) is None


@pytest.mark.parametrize(
    ("train_loss", "words"),
    [(0.3, "has overfitted: the training loss is 0.3. Try fewer --epochs, a higher --l2"), (0.8, "Try more --epochs"),
     (0.68, "Try more --epochs"), (None, "Try more --epochs")],
)  # fmt: skip
def test_what_to_try_depends_on_the_training_loss(train_loss: float | None, words: str) -> None:
    line = {"rows": 10, "train_loss": train_loss, "test_loss": 0.72, "test_baseline_loss": 0.69}
    told = why_worse([line], None, MODEL, 0.5)
    assert told.startswith("this model is worse than a constant: the test loss is 0.72; the best constant prediction")
    assert words in told
    assert "--learning-rate 0.05" in told
    assert not why_worse([line | {"test_loss": 0.68}], None, MODEL, 0.5)


def test_a_kept_model_is_good_if_it_is_better_than_a_constant() -> None:
    assert not is_good(None, MODEL)
    for loss, good in ((0.6, True), (0.9, False)):
        best = Best(rows=10, validation={"loss": loss, "baseline_loss": 0.69}, test={"loss": 0.1, "baseline_loss": 0.2})
        assert is_good(best, MODEL) == good


def test_by_the_training_loss_alone_only_much_worse_models_are_worse() -> None:
    assert not Standing("train", 1.2, 1.0).is_worse
    assert Standing("train", 1.4, 1.0).is_worse
    assert Standing("test", 1.01, 1.0).is_worse
