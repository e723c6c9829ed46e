"""Memory that processes of one machine share: only those that are told where it is see what is written there."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from paceline.training.cluster.shared import open_shared, share, shared_bytes
from tests.skips import needs_memfd

pytestmark = needs_memfd

READ = """
import sys
from paceline.training.cluster.shared import open_shared
found = open_shared(sys.argv[1], 3)
print(None if found is None else found.tolist())
"""


def read_elsewhere(place: str) -> str:
    """What another process finds there."""
    done = subprocess.run([sys.executable, "-c", READ, place], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def test_another_process_sees_what_is_written() -> None:
    values, place = share(3)
    assert read_elsewhere(place) == "[0.0, 0.0, 0.0]"
    values[:] = 1, 2, 3
    assert read_elsewhere(place) == "[1.0, 2.0, 3.0]"


def test_it_is_only_read_by_others() -> None:
    _, place = share(3)
    found = open_shared(place, 3)
    assert found is not None
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 1


def test_what_is_not_what_was_meant_is_not_taken() -> None:
    _, place = share(3)
    path, name = place.split()
    other = share(3)[1].split()[0]
    for wrong in (
        "",
        path,
        f"{other} {name}",
        f"/proc/1/fd/0 {name}",
        f"/etc/passwd {name}",
        f"{path} {'0' * 32}",
        place + " ",
    ):
        assert open_shared(wrong, 3) is None
    # Larger than it is.
    assert open_shared(place, 10**6) is None


def test_where_the_system_does_not_let_it_nothing_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    before = shared_bytes()
    values, place = share(3)
    assert shared_bytes() == before + 12

    def refuse(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "memfd_create", refuse)
    values, place = share(3)
    assert (values.tolist(), place) == ([0, 0, 0], "")
    assert shared_bytes() == before + 12


def test_it_outlives_who_made_it() -> None:
    """As long as somebody sees it: a worker may be lost while its gradient is read."""
    make = (
        "from paceline.training.cluster.shared import share; v, p = share(3); v[:] = 7; print(p, flush=True); input()"
    )
    maker = subprocess.Popen([sys.executable, "-c", make], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert maker.stdout is not None
    place = maker.stdout.readline().strip()
    found = open_shared(place, 3)
    maker.kill()
    maker.communicate(timeout=60)
    assert found is not None
    assert np.array_equal(found, [7, 7, 7])
    assert open_shared(place, 3) is None
