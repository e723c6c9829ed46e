from __future__ import annotations

import errno
import fcntl
from pathlib import Path
from typing import Any

import pytest

from paceline.data.blocks.partial import PartialFolder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_leftovers_of_the_same_name_are_removed_and_nothing_else(tmp_path: Path) -> None:
    others = [
        ".a.partial-1234567",
        ".a.partial-1234567g",
        ".b.partial-12345678",
        "a.partial-12345678",
        ".axpartial-12345678",
    ]
    for name in [*others, ".a.partial-12345678", ".a.partial-abcdef00"]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "train-00000.arrow").touch()
    (tmp_path / ".a.partial-0000aaaa").touch()
    folder = PartialFolder(tmp_path / "a")
    folder.make()
    assert names(tmp_path) == sorted([*others, ".a.partial-0000aaaa", folder.path.name])


def test_a_folder_that_is_being_written_stays(tmp_path: Path) -> None:
    first, second = PartialFolder(tmp_path / "a"), PartialFolder(tmp_path / "a")
    first.make()
    second.make()
    assert names(tmp_path) == sorted([first.path.name, second.path.name])
    second.remove()
    (first.path / "x").touch()
    first.move_into_place()
    first.remove()
    assert names(tmp_path) == ["a"]
    assert names(tmp_path / "a") == ["x"]


def test_a_file_system_without_locks_keeps_leftovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    (tmp_path / ".a.partial-12345678").mkdir()
    folder = PartialFolder(tmp_path / "a")
    folder.make()
    assert len(names(tmp_path)) == 2
    folder.move_into_place()
    assert names(tmp_path) == [".a.partial-12345678", "a"]
