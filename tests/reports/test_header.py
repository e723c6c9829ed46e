"""The head of a page says what, when and where, as far as a run recorded it."""

from __future__ import annotations

from pathlib import Path

from paceline.reports.header import data_of, title_of, when_and_where
from paceline.run_folder import RunFolder
from tests.reports.folders import make_run


def test_an_older_run_says_only_what_it_knows(run: RunFolder) -> None:
    assert title_of(run) == "my-run, logistic on clicks – paceline"
    assert when_and_where(run) == ""


def test_rows_in_memory_have_no_folder(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", data="/tmp/paceline-abc/memory", telemetry=False)
    assert data_of(run) == "rows in memory"
