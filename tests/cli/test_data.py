"""`generate` and `prepare` as users meet them."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import Command


def test_several_test_sources_follow_one_flag(command: Command, tmp_path: Path) -> None:
    for name, rows in (("a", 5), ("b", 3), ("c", 2)):
        (tmp_path / f"{name}.svm").write_text("1 1:1\n" * rows)
    a, b, c = (tmp_path / f"{name}.svm" for name in "abc")
    outcome = command("prepare", a, "--test", b, c, "--out", tmp_path / "data")
    assert outcome.code == 0
    assert "5 training and 5 test rows" in outcome.out
