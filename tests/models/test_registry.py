"""An entry of the registry declares what its model is."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.data.sparse.dataset import SparseDataset
from paceline.errors import ConfigError
from paceline.models.registry import MODELS, check_code, find, find_of_old_run, is_known, resume_command
from paceline.settings import RunConfig


def test_an_entry_that_is_wrong_about_its_table_is_refused(clicks: Path) -> None:
    entry = MODELS["linear"]._replace(keyed=False)
    with pytest.raises(RuntimeError, match="the entry of `linear` has keyed=False"):
        entry.build(RunConfig(), SparseDataset(clicks), 1)


def test_an_entry_that_is_wrong_about_its_kernel_is_refused(clicks: Path) -> None:
    entry = MODELS["linear"]._replace(compiled=False)
    with pytest.raises(RuntimeError, match="the entry of `linear` has compiled=False"):
        entry.build(RunConfig(), SparseDataset(clicks), 1)


@pytest.mark.parametrize(
    ("given", "labels", "found"),
    [("", "two-classes", "logistic"), ("", "classes", "softmax"), ("", "numbers", "squared"),
     ("squared", "two-classes", "squared"), ("softmax", "two-classes", "softmax"), ("huber", "numbers", "huber")],
)  # fmt: skip
def test_the_labels_pick_the_loss_if_nobody_does(given: str, labels: str, found: str) -> None:
    assert find("linear").loss_for(given, labels) == found


@pytest.mark.parametrize(
    ("given", "labels", "hint"),
    [("hinge", "classes", "--loss softmax"), ("softmax", "numbers", "--loss squared, poisson, quantile"),
     ("logistic", "numbers", "--labels two-classes")],
)  # fmt: skip
def test_a_loss_that_does_not_fit_the_labels_is_refused(given: str, labels: str, hint: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"the loss `{given}` needs labels .* those of the data are `{labels}`"
    ) as error:
        find("linear").loss_for(given, labels)
    assert hint in error.value.hint


def test_several_classes_are_not_said_to_be_two() -> None:
    for model, given, hint in (("linear", "logistic", "--loss softmax"), ("fm", "", "--model linear")):
        with pytest.raises(ConfigError) as error:
            find(model).loss_for(given, "classes")
        assert error.value.hint == hint


def test_logistic_is_an_older_name_of_linear() -> None:
    assert find("logistic") is find("linear") is find_of_old_run("logistic")
    assert is_known("logistic")


def test_the_command_that_resumes_a_run_names_its_code() -> None:
    assert resume_command("runs/a", "logistic") == "paceline resume runs/a"
    assert resume_command("runs/a", "mine.nets:build") == "paceline resume runs/a --model mine.nets:build"


def test_what_cannot_be_a_function_is_not_suggested() -> None:
    with pytest.raises(ConfigError, match=r"a function is PACKAGE\.MODULE:FUNCTION"):
        check_code("runs/a", "mine:build; rm -rf .", "", "--model")
