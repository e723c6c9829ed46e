"""Errors are one line and a hint, and exit with 2 before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Command


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["train"], "no data to train on", "--data DIR"),
        (["train", "--data", "nowhere"], "no dataset at `nowhere`", "paceline prepare"),
        (["train", "--data", "."], "is not a dataset: it has no manifest.json", "paceline prepare"),
        (["train", "--dta", "x"], "No such option '--dta'", "Did you mean"),
        (["train", "--workers", "two"], "'two' is not a valid integer", "--help"),
        (["trian"], "No such command 'trian'", "'train'"),
        (["train", "--data", "x", "--pace", "-1"], "`pace` is `-1`", "`--pace async` never waits"),
        (["train", "recipe.toml"], "recipe `recipe.toml` cannot be read", "TOML"),
        (["resume", "nowhere"], "`nowhere` does not exist", "`paceline train` made"),
        (["evaluate", "nowhere", "--data", "x"], "`nowhere` does not exist", "`paceline train` made"),
        (["generate", "clicks", "--rows", "0", "--out", "x"], "`rows` is 0", "--rows 1"),
        (["generate", "clicks", "--rows", "5", "--features", "3", "--out", "x"], "`features` is 3", "Criteo"),
        (["generate", "clicks", "--rows", "5", "--seed", str(1 << 70), "--out", "x"], "`seed` is", "--seed 0"),
        (["prepare", "nowhere.tsv", "--out", "x"], "nowhere.tsv", ""),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_a_hint(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], error: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = command(*arguments)
    assert outcome.code == 2
    lines = outcome.err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("error: ")
    assert error in lines[0]
    assert lines[1].startswith("hint: ")
    assert hint in lines[1]
    assert not list(tmp_path.iterdir())


def test_names_in_files_do_not_reach_the_terminal_as_they_are(command: Command, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'"la\x1b[2Jbel",b\n1,2\n')
    outcome = command("prepare", tmp_path / "a.csv", "--out", tmp_path / "out")
    assert outcome.code == 2
    assert r"it has la\x1b[2Jbel" in outcome.err
    assert len(outcome.err.splitlines()) == 2
