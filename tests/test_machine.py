"""How many cores may this process use? As many as its affinity and its cgroups allow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paceline.machine import num_cores


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 16 cores; a test writes what Linux would say about cgroups into this folder."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(16)), raising=False)
    monkeypatch.setattr("paceline.machine.OWN_CGROUPS", tmp_path / "own")
    monkeypatch.setattr("paceline.machine.CGROUPS", tmp_path / "cgroup")
    return tmp_path


def write(folder: Path, content: dict[str, str]) -> None:
    for name, text in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_a_machine_without_cgroups(groups: Path) -> None:
    assert num_cores() == 16


@pytest.mark.parametrize(
    ("limits", "cores"),
    [
        ({"a/b/cpu.max": "max 100000\n"}, 16),
        ({"a/b/cpu.max": "300000 100000\n"}, 3),
        ({"a/b/cpu.max": "150000 100000\n"}, 2),
        ({"a/b/cpu.max": "1000 100000\n"}, 1),
        ({"a/b/cpu.max": "6400000 100000\n"}, 16),
        ({"a/b/cpu.max": "max 100000\n", "a/cpu.max": "400000 100000\n"}, 4),
        ({"cpu.max": "500000 100000\n"}, 5),
        ({"a/b/cpu.max": "nonsense"}, 16),
        ({"a/b/cpu.max": "100000 0\n"}, 16),
        ({"a/b/cpu.max": "100000 -100000\n"}, 16),
        ({"a/b/cpu.max": "inf 100000\n"}, 16),
        ({"a/b/cpu.max": "100000 nan\n"}, 16),
        ({"a/b/cpu.max": "-5 100000\n"}, 16),
    ],
)
def test_version_2(groups: Path, limits: dict[str, str], cores: int) -> None:
    """The limit of any group around this process counts. In a container, its own may not be there."""
    write(groups, {"own": "0::/a/b\n", **{f"cgroup/{name}": text for name, text in limits.items()}})
    assert num_cores() == cores


@pytest.mark.parametrize("own", [b"nonsense", b"0::/a\xff\n", b"0::\n", b"::\n", b"0::/a\0b\n"])
def test_groups_that_make_no_sense_limit_nothing(groups: Path, own: bytes) -> None:
    (groups / "own").write_bytes(own)
    assert num_cores() == 16


def test_at_least_one(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(), raising=False)
    assert num_cores() == 1


@pytest.mark.parametrize(("quota", "cores"), [("-1", 16), ("250000", 3), ("200000", 2)])
def test_version_1(groups: Path, quota: str, cores: int) -> None:
    own = "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n"
    group = "cgroup/cpu,cpuacct/docker/x"
    write(groups, {"own": own, f"{group}/cpu.cfs_quota_us": quota, f"{group}/cpu.cfs_period_us": "100000"})
    assert num_cores() == cores
