"""An entry of the registry declares what its model is."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.data.sparse.dataset import SparseDataset
from paceline.errors import ConfigError
from paceline.models.registry import MODELS, check_code, resume_command
from paceline.settings import RunConfig


def test_an_entry_that_is_wrong_about_its_table_is_refused(clicks: Path) -> None:
    entry = MODELS["logistic"]._replace(keyed=False)
    with pytest.raises(RuntimeError, match="the entry of `logistic` has keyed=False"):
        entry.build(RunConfig(), SparseDataset(clicks), 1)


def test_an_entry_that_is_wrong_about_its_kernel_is_refused(clicks: Path) -> None:
    entry = MODELS["logistic"]._replace(compiled=False)
    with pytest.raises(RuntimeError, match="the entry of `logistic` has compiled=False"):
        entry.build(RunConfig(), SparseDataset(clicks), 1)


def test_the_command_that_resumes_a_run_names_its_code() -> None:
    assert resume_command("runs/a", "logistic") == "paceline resume runs/a"
    assert resume_command("runs/a", "mine.nets:build") == "paceline resume runs/a --model mine.nets:build"


def test_what_cannot_be_a_function_is_not_suggested() -> None:
    with pytest.raises(ConfigError, match=r"a function is PACKAGE\.MODULE:FUNCTION"):
        check_code("runs/a", "mine:build; rm -rf .", "", "--model")
