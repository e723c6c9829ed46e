"""The operations of a step are those that the model's entry names; a model without them says so."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

import paceline
from paceline.config import to_toml
from paceline.diagnosis.operations import READ, time_operations
from paceline.errors import DataError, UsageError
from paceline.models.linear_operations import OPERATIONS
from tests.reports.folders import make_half_run


def test_every_operation_is_timed(clicks: Path, tmp_path: Path) -> None:
    run = paceline.train(data=clicks, run=tmp_path / "run")
    found = time_operations(run, batches=2)
    assert [one["name"] for one in found] == [*READ, *OPERATIONS]
    assert all(one["nanoseconds_per_row"] > 0 for one in found)


@pytest.mark.parametrize("model", ["alexnet", "not.there:build"])
def test_a_model_whose_operations_are_unknown_says_so(tmp_path: Path, model: str) -> None:
    run = make_half_run(tmp_path / "run")
    (run.path / "config.toml").write_bytes(to_toml(msgspec.structs.replace(run.config, model=model)))
    with pytest.raises(UsageError, match=f"the operations of a step of `{model}` cannot be timed"):
        time_operations(run)


def test_data_that_was_moved_is_asked_for(clicks: Path, tmp_path: Path) -> None:
    shutil.copytree(clicks, tmp_path / "data")
    run = paceline.train(data=tmp_path / "data", run=tmp_path / "run")
    (tmp_path / "data").rename(tmp_path / "moved")
    with pytest.raises(DataError, match="no dataset at") as caught:
        time_operations(run)
    assert "put it back there" in caught.value.hint
