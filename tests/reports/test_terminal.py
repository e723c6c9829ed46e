"""What people see when something is done."""

from __future__ import annotations

import pytest

from paceline.reports import terminal
from paceline.telemetry.facts import Traits

TRAITS = Traits(input="images", keyed=False, metrics=("loss", "error", "accuracy"))


def test_a_result_without_test_rows_has_dashes() -> None:
    result = {
        "pace": 4,
        "workers": 2,
        "batch_size": 1000,
        "rows_per_second": 1234567.8,
        "train_seconds": 0.5,
        "test": {},
    }
    assert terminal.result_row("mine", result, TRAITS) == [
        "mine",
        "4",
        "2",
        "1,000",
        "1,234,568",
        "0.50",
        "–",
        "–",
        "–",
    ]


def test_columns_use_the_words_of_the_model() -> None:
    columns = terminal.result_columns(TRAITS)
    assert columns[4:] == ["images/s", "seconds", "test loss", "error", "accuracy"]


def test_tables_fit_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_table(("name", "number"), [("a", "1"), ("longer", "22")])
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["name", "number"], ["a", "1"], ["longer", "22"],
    ]  # fmt: skip
