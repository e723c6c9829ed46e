"""What people see of the inside of a model."""

from __future__ import annotations

import pytest

from paceline.reports.inside import print_info, print_top


def test_names_cannot_take_over_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    feature = {"feature": "a=\x1b[2J", "key": 1, "weight": -0.5, "rows": None, "share": None}
    print_top({"features": [feature], "notes": []})
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert shown.splitlines()[1].split() == ["a=\\x1b[2J", "-0.5", "–", "–"]
    print_top({"features": [], "notes": []})
    assert capsys.readouterr().out == "all weights are 0\n"


def test_images_are_told_in_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    found = {
        "path": "data/mnist", "kind": "images", "rows": {"train": 5, "validation": 0, "test": 1}, "shape": [28, 28, 1],
        "classes": 10, "disk_bytes": 47_040_000, "source": {"format": "idx"},
        "warnings": [{"warning": "they are grey", "hint": "paint them"}],
    }  # fmt: skip
    print_info(found)
    assert capsys.readouterr().out.splitlines() == [
        "data/mnist: images",
        "  rows      5 train, 1 test",
        "  shape     28 × 28 × 1",
        "  classes   10",
        "  on disk   47 MB",
        "  prepared  format idx",
        "warning: they are grey",
        "  hint: paint them",
    ]
