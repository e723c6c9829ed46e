"""The version is written down once, in `version.py`, and everything else that shows it agrees."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import paceline
from paceline.version import VERSION

ROOT = Path(__file__).parent.parent


def test_the_installed_package_has_this_version() -> None:
    assert importlib.metadata.version("paceline") == paceline.__version__ == VERSION


def test_the_citation_and_the_changelog_name_it() -> None:
    assert f"version: {VERSION}" in (ROOT / "CITATION.cff").read_text("utf-8").splitlines()
    assert f"\n## {VERSION}" in (ROOT / "CHANGELOG.md").read_text("utf-8")
