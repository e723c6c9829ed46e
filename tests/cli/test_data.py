"""`generate` and `prepare` as users meet them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Command


def test_several_test_sources_follow_one_flag(command: Command, tmp_path: Path) -> None:
    for name, rows in (("a", 5), ("b", 3), ("c", 2)):
        (tmp_path / f"{name}.svm").write_text("1 1:1\n" * rows)
    a, b, c = (tmp_path / f"{name}.svm" for name in "abc")
    outcome = command("prepare", a, "--test", b, c, "--out", tmp_path / "data")
    assert outcome.code == 0
    assert "5 training rows, 5 test rows" in outcome.out


def test_sources_of_different_formats_are_refused(command: Command, tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text("1 1:1\n")
    (tmp_path / "a.csv").write_text("label,x\n1,2\n")
    outcome = command("prepare", tmp_path / "a.svm", tmp_path / "a.csv", "--out", tmp_path / "data")
    assert outcome.code == 2
    assert f"the sources have different formats: `{tmp_path}/a.csv` is csv, others are libsvm" in outcome.err


def test_ctrl_c_leaves_nothing(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("paceline.data.prepare._fill", interrupt)
    (tmp_path / "a.svm").write_text("1 1:1\n")
    outcome = command("prepare", tmp_path / "a.svm", "--out", tmp_path / "data")
    assert outcome.code == 130
    assert outcome.err.splitlines() == ["error: interrupted", "hint: nothing was written; run it again"]
    assert [path.name for path in tmp_path.iterdir()] == ["a.svm"]


def test_one_bad_row_is_not_several(command: Command, tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text("1 1:1\nx\n0 2:1\n")
    outcome = command("prepare", tmp_path / "a.svm", "--out", tmp_path / "data", "--skip-bad-rows", 1)
    assert "note: skipped 1 bad row\n" in outcome.err
    assert "2 training rows, 0 test rows" in outcome.out
