"""The docs do what they say: the tutorial's commands run, links lead somewhere, the reference is current."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_every_command_of_the_tutorial_runs(tmp_path: Path) -> None:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    blocks = BLOCK.findall((ROOT / "docs" / "tutorial.md").read_text("utf-8"))
    assert len(blocks) > 6
    for language, text in blocks:
        command = ["bash", "-euo", "pipefail", "-c", text] if language == "sh" else [sys.executable, "-c", text]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"


def test_reference_and_links() -> None:
    done = subprocess.run([sys.executable, "docs/build.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_promise_has_a_test_that_exists() -> None:
    page = (ROOT / "docs" / "promises.md").read_text("utf-8")
    named = re.findall(r"`(tests/[^`]*)`", page)
    assert len(named) > 50
    for name in named:
        path, *places = name.split("::")
        assert places, f"{name} names a file; name its tests"
        text = (ROOT / path).read_text("utf-8")
        for depth, place in enumerate(places):
            kind = "def" if place == places[-1] else "class"
            assert re.search(rf"^{'    ' * depth}{kind} {place}\b", text, re.MULTILINE), name


def test_every_row_of_promises_names_a_test() -> None:
    page = (ROOT / "docs" / "promises.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("|") and not line.startswith(("| promise |", "|---"))]
    assert len(rows) >= 30
    assert [row for row in rows if "`tests/" not in row.split("|")[-2]] == []
