"""`generate` and `prepare` as users meet them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.files import tree
from tests.conftest import Command


def test_several_test_sources_follow_one_flag(command: Command, tmp_path: Path) -> None:
    for name, rows in (("a", 5), ("b", 3), ("c", 2)):
        (tmp_path / f"{name}.svm").write_text("1 1:1\n" * rows)
    a, b, c = (tmp_path / f"{name}.svm" for name in "abc")
    outcome = command("prepare", a, "--test", b, c, "--out", tmp_path / "data")
    assert outcome.code == 0
    assert "5 training rows, 5 test rows" in outcome.out


def test_validation_sources_and_weights_follow_one_flag(command: Command, tmp_path: Path) -> None:
    for name, rows in (("a", 5), ("b", 3), ("c", 2)):
        (tmp_path / f"{name}.svm").write_text("1 1:1\n" * rows)
        (tmp_path / f"{name}.weights").write_text("2\n" * rows)
    (a, b, c), weights = ([tmp_path / f"{name}.{suffix}" for name in "abc"] for suffix in ("svm", "weights"))
    outcome = command("prepare", a, "--validation", b, c, "--weights", *weights, "--out", tmp_path / "data")
    assert outcome.code == 0
    assert "5 training rows, 5 validation rows, 0 test rows, 1 features, with weights" in outcome.out


NOT_UTF8 = os.fsdecode(b"n\xff")


@pytest.mark.parametrize(
    "arguments",
    [
        ("prepare", f"{NOT_UTF8}.csv", "--out", "x"),
        ("prepare", "*/*.csv", "--out", "x"),
        ("prepare", "folder", "--out", "x"),
        ("prepare", "own.csv", "--out", NOT_UTF8),
        ("prepare", "own.csv", "--out", "x", "--test", f"s3://{NOT_UTF8}"),
        ("generate", "clicks", "--rows", 100, "--out", NOT_UTF8),
        ("train", "--data", NOT_UTF8),
        ("train", "--data", f"s3://{NOT_UTF8}"),
        ("train", "--data", "own", "--run", NOT_UTF8),
        ("trace", "--size", 8, "--blocks", 2, "--run", NOT_UTF8),
        ("matmul", f"{NOT_UTF8}.npy", f"{NOT_UTF8}.npy", "--out", "C.npy"),
    ],
)
def test_names_that_are_not_utf8(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[Any, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    for path in ("own.csv", f"{NOT_UTF8}.csv", f"folder/{NOT_UTF8}.csv"):
        Path(path).write_text("label,a\n1,2\n0,3\n")
    with open(f"{NOT_UTF8}.npy", "wb") as file:
        np.save(file, np.ones((3, 3)))
    assert command("prepare", "own.csv", "--out", "own").code == 0
    before = tree(tmp_path)
    refused = command(*arguments)
    assert refused.code == 2
    error, hint = refused.err.splitlines()[-2:]
    assert "UTF-8" in error or "utf-8" in error
    assert hint.startswith("hint: ")
    assert tree(tmp_path) == before


def test_the_current_folder_is_not_replaced(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.csv").write_text("label,a\n1,2\n0,3\n")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    for arguments in (("prepare", "../own.csv"), ("generate", "clicks", "--rows", 100)):
        refused = command(*arguments, "--out", ".")
        assert refused.code == 2
        assert "error: a dataset cannot replace the current folder\nhint: " in refused.err


@pytest.mark.parametrize("arguments", [("train", "--data"), ("prepare", "--out", "x")])
def test_an_address_with_a_null_byte(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = command(*arguments, "file:///tmp/%00x")
    assert refused.code == 2
    assert r"\x00x" in refused.err


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


def test_flags_of_columns(command: Command, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        'label,"a,b",shop,town,age,at\n' + "1,x,3,Rome,20,2026-11-18 21:30\n0,y,4,Oslo,50,\n" * 9
    )
    outcome = command(
        "prepare", tmp_path / "a.csv", "--drop", '"a,b"', "--categorical", "shop", "--timestamp", "at", "--cross",
        "shop,town", "--cross", "town,at.hour", "--bins", "age=30,40", "--hash-bits", 10, "--out", tmp_path / "data",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert (
        "text columns: town; categories that are numbers: shop; columns in bins: age (3); "
        "timestamps (hour and day of the week): at"
    ) in outcome.err
    assert "crosses: shop×town, town×at.hour" in outcome.err
    for flag, value, words in (
        ("--drop", "twon", "did you mean `town`?"),
        ("--bins", "age", "--bins age=10"),
        ("--cross", "town", "it must be two or more columns"),
    ):
        outcome = command("prepare", tmp_path / "a.csv", flag, value, "--out", tmp_path / "other")
        assert outcome.code == 2
        assert words in outcome.err
        assert not (tmp_path / "other").exists()
