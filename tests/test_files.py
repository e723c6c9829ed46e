"""Files that are whole or not there, and disks that are full."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.errors import RunError, UsageError
from paceline.files import free_path, refuse_existing, replace_file, translated_disk_errors


def test_replacing_leaves_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"old", b"new and longer"):
        replace_file(path, content)
        assert [p.name for p in tmp_path.iterdir()] == ["file"]
        assert path.read_bytes() == content


def test_a_full_disk_is_one_clear_line(tmp_path: Path) -> None:
    full = pytest.raises(UsageError, match=r"no room left on the disk while writing `x`")
    with full, translated_disk_errors(Path("x")), open("/dev/full", "wb", buffering=0) as file:
        file.write(b"anything")


def test_other_errors_of_the_disk_are_named(tmp_path: Path) -> None:
    named = pytest.raises(RunError, match=r"writing `x` failed: Input/output error")
    with named, translated_disk_errors(Path("x")):
        raise OSError(5, "Input/output error")


def test_the_next_free_name(tmp_path: Path) -> None:
    for name in ("run", "run-2", "run-3"):
        path = free_path(tmp_path / "run")
        assert path.name == name
        path.mkdir()


def test_only_free_names_are_taken(tmp_path: Path) -> None:
    refuse_existing(tmp_path / "new")
    refuse_existing(tmp_path)
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file"):
        with pytest.raises(UsageError, match="exists already"):
            refuse_existing(path)
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(UsageError, match="exists already"):
        refuse_existing(tmp_path / "link")
