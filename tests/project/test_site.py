"""The site that `make docs` builds has every page, and its API reference every public name."""

from __future__ import annotations

import re
from pathlib import Path

import paceline

ROOT = Path(__file__).parents[2]
IN_NAV = re.compile(r"^ +- [^:]+: (\S+(?:\.md|/))$", re.MULTILINE)


def test_navigation_leads_to_every_page() -> None:
    entries = IN_NAV.findall((ROOT / "mkdocs.yml").read_text("utf-8"))
    folders = tuple(entry for entry in entries if entry.endswith("/"))
    pages = {path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]}
    assert {page for page in pages if not page.startswith(folders)} == set(entries) - set(folders)
    assert all((ROOT / folder).is_dir() for folder in folders)


def test_the_api_reference_has_every_public_name() -> None:
    named = re.findall(r"^::: paceline\.(\w+)$", (ROOT / "docs" / "api.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(named) == sorted(paceline.__all__)
