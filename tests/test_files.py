"""Files that are whole or not there, and disks that are full."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
from pathlib import Path

import numpy as np
import pytest

from paceline.errors import DataError, PacelineError, RunError, UsageError
from paceline.files import (
    append,
    free_path,
    locked,
    read_file,
    refuse_existing,
    refuse_planted,
    replace_file,
    translated_disk_errors,
    without_disk_errors,
    write_tensors,
)


def test_replacing_leaves_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"old", b"new and longer"):
        replace_file(path, content)
        assert [p.name for p in tmp_path.iterdir()] == ["file"]
        assert path.read_bytes() == content


def test_replacing_does_not_write_through_a_planted_link(tmp_path: Path) -> None:
    """A foreign run folder may contain links to files of the user who looks at it."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"mine")
    (tmp_path / "report.html").symlink_to(precious)
    (tmp_path / ".report.html.new").symlink_to(precious)
    replace_file(tmp_path / "report.html", b"theirs")
    assert precious.read_bytes() == b"mine"
    assert (tmp_path / "report.html").read_bytes() == b"theirs"


def test_a_full_disk_is_one_clear_line(tmp_path: Path) -> None:
    full = pytest.raises(UsageError, match=r"no room left on the disk while writing `x`")
    with full, translated_disk_errors(Path("x")), open("/dev/full", "wb", buffering=0) as file:
        file.write(b"anything")


def test_other_errors_of_the_disk_are_named(tmp_path: Path) -> None:
    named = pytest.raises(RunError, match=r"writing `x` failed: Input/output error")
    with named, translated_disk_errors(Path("x")):
        raise OSError(5, "Input/output error")


def test_what_is_added_is_all_there_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    append(path, b"first\n")
    # No room for more than 8 bytes.
    limit, before = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, limit[1]))
    try:
        with pytest.raises(PacelineError, match="no room left"):
            append(path, b"second\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    assert path.read_bytes() == b"first\n"
    append(path, b"third\n")
    assert path.read_bytes() == b"first\nthird\n"


def test_tensors_have_the_users_umask_which_nobody_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", lambda _: pytest.fail("other threads would write with this umask"))
            write_tensors(tmp_path / "new", {"a": np.zeros(3, np.float32)})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


def test_what_is_shown_may_find_no_room() -> None:
    def show(error: OSError) -> None:
        raise error

    without_disk_errors(show)(OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(BrokenPipeError):
        without_disk_errors(show)(BrokenPipeError())


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


def test_a_planted_pipe_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    refused = pytest.raises(UsageError, match="is not a regular file")
    with refused:
        read_file(pipe, "remove it")
    with refused:
        append(pipe, b"more")
    with refused, locked(pipe):
        pytest.fail("locked")


def test_nothing_is_added_through_a_planted_link(tmp_path: Path) -> None:
    precious, link = tmp_path / "precious", tmp_path / "nodes.jsonl"
    precious.write_bytes(b"mine")
    link.symlink_to(precious)
    with pytest.raises(UsageError, match="is not a regular file"):
        append(link, b"theirs")
    assert precious.read_bytes() == b"mine"


def test_a_file_without_content_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 40 << 30)
    with pytest.raises(DataError, match=r"sparse` has 42\.9 GB; the limit is 512 MiB"):
        read_file(path, "remove it")


@pytest.mark.parametrize("name", ["telemetry/x.jsonl", "checkpoints", "model/model.json"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_folders_with_links_and_pipes_are_not_written_to(tmp_path: Path, name: str, kind: str) -> None:
    run = tmp_path / "run"
    path = run / name
    path.parent.mkdir(parents=True)
    (run / "config.toml").touch()
    refuse_planted(run)
    path.symlink_to(tmp_path) if kind == "link" else os.mkfifo(path)
    with pytest.raises(UsageError, match=name):
        refuse_planted(run)
