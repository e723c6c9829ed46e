"""The folder of a Ray of our own, and what is left of it when its owner is killed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.engines.leftovers import OWNER, OwnFolder, remove_abandoned

OWNS = """
import sys, time
from paceline.engines.leftovers import OwnFolder
folder = OwnFolder()
folder.ray.mkdir()
if sys.argv[1] == "unwatched":
    folder._watching.kill()
print(folder.path, flush=True)
time.sleep(60)
"""
MAKES_AGAIN = """
import os, sys, time
print("waits", flush=True)
while os.path.exists(sys.argv[1]):
    time.sleep(0.01)
os.makedirs(sys.argv[1] + "/r/session")
"""
HOLDS = "import sys, time; file = open(sys.argv[1], 'w'); print('holds', flush=True); time.sleep(60)"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


class Processes:
    """Python processes that are ended with the test."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[str]] = []

    def start(self, name: str, code: str, argument: str) -> tuple[subprocess.Popen[str], str]:
        """Start one under a name; returns it and the first line that it prints."""
        process = subprocess.Popen(
            [name, "-c", code, argument], executable=sys.executable, stdout=subprocess.PIPE, text=True
        )
        self.started.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()


@pytest.fixture
def processes() -> Iterator[Processes]:
    found = Processes()
    yield found
    for process in found.started:
        process.kill()
        process.communicate()


def test_only_its_user_can_look_into_it() -> None:
    folder = OwnFolder()
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    folder.remove()
    assert not folder.path.exists()


def test_what_is_made_again_after_it_was_removed_goes_too(processes: Processes) -> None:
    folder = OwnFolder()
    maker, said = processes.start("ray::Host", MAKES_AGAIN, str(folder.path))
    assert said == "waits"
    folder.remove()
    assert maker.wait(10) == 0
    deadline = time.monotonic() + 10
    while folder.path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_when_its_owner_is_killed_it_goes_with_what_uses_it(processes: Processes) -> None:
    owner, path = processes.start(sys.executable, OWNS, "watched")
    user, _ = processes.start("ray::Host", HOLDS, f"{path}/r/log")
    reader, _ = processes.start("tail", HOLDS, f"{path}/r/other")
    owner.kill()
    assert user.wait(timeout=10) == -9
    deadline = time.monotonic() + 10
    while Path(path).exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert reader.poll() is None


def test_the_next_start_removes_what_was_abandoned(processes: Processes, temporary: Path) -> None:
    owner, path = processes.start(sys.executable, OWNS, "unwatched")
    user, _ = processes.start("ray::Host", HOLDS, f"{path}/r/log")
    remove_abandoned(temporary)
    assert Path(path, OWNER).exists()
    assert user.poll() is None
    owner.kill()
    owner.wait()
    assert Path(path).exists()
    folder = OwnFolder()
    assert user.wait(timeout=10) == -9
    assert [one.name for one in temporary.iterdir()] == [folder.path.name]
    folder.remove()


def test_what_ray_makes_again_while_it_ends_goes_too(processes: Processes) -> None:
    owner, path = processes.start(sys.executable, OWNS, "watched")
    again, _ = processes.start(sys.executable, MAKES_AGAIN, path)
    owner.kill()
    assert again.wait(timeout=10) == 0
    deadline = time.monotonic() + 10
    while Path(path).exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_folder_without_an_owner_goes_at_the_next_start(temporary: Path) -> None:
    (temporary / "paceline-ray-again" / "r" / "session").mkdir(parents=True)
    (temporary / "mine").mkdir()
    (temporary / "paceline-ray-link").symlink_to(temporary / "mine")
    remove_abandoned(temporary)
    assert sorted(one.name for one in temporary.iterdir()) == ["mine", "paceline-ray-link"]


def test_a_planted_pipe_or_link_is_neither_waited_for_nor_removed(temporary: Path) -> None:
    owners = [temporary / f"paceline-ray-{name}" / OWNER for name in ("pipe", "link")]
    for owner in owners:
        owner.parent.mkdir()
    os.mkfifo(owners[0])
    (temporary / "mine").touch()
    owners[1].symlink_to(temporary / "mine")
    remove_abandoned(temporary)
    assert all(owner.is_symlink() or owner.is_fifo() for owner in owners)
