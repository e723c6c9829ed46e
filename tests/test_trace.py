"""docs/trace-one-step.md names files, functions and classes: each of them exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "trace-one-step.md"
NAMED = re.compile(r"`([\w/]+\.py):\s+([\w.]+)`")


def names_in(path: Path) -> set[str]:
    """The functions and classes of a file, declared names, and the methods of its classes as `Class.method`."""
    found = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return found


def test_every_name_on_the_page_exists() -> None:
    named = NAMED.findall(PAGE.read_text("utf-8"))
    assert len(named) > 40
    missing = []
    for file, name in named:
        path = ROOT / "src" / "paceline" / file
        if not path.is_file() or name not in names_in(path):
            missing.append(f"{file}: {name}")
    assert missing == []


def test_every_case_takes_five_hops() -> None:
    assert re.findall(r"^(\d)\. ", PAGE.read_text("utf-8"), re.MULTILINE) == list("12345" * 5)
