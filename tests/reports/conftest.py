"""Runs to report on, and a browser to look at the pages with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.run_folder import RunFolder
from tests.reports.browser import Browser
from tests.reports.folders import make_half_run, make_run

# As a folder may be called: no slash.
HOSTILE = "<script>alert(1)<script>\"'&amp;<img src=x onerror=alert(2)>"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A finished run of four workers on three nodes."""
    return make_run(tmp_path / "my-run")


@pytest.fixture
def hostile_run(tmp_path: Path) -> RunFolder:
    """A run whose folder, nodes and data are named by someone who wants scripts to run."""
    script = "</title></style></script><script>alert(1)</script>"
    return make_run(tmp_path / HOSTILE, nodes=(script, "<b>node</b>"), data=script)


@pytest.fixture
def half_run(tmp_path: Path) -> RunFolder:
    """A run that was killed before its first evaluation."""
    return make_half_run(tmp_path / "half")


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Headless Chromium, for tests marked `needs_chromium`."""
    with Browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found
