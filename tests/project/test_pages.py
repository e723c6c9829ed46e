"""Every snippet of these pages runs, one after the other, in an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.test_docs import BLOCK, ROOT

PAGES = ("scikit-learn.md", "scoring.md")


@pytest.mark.parametrize("page", PAGES)
def test_every_snippet_of_a_page_runs(page: str, tmp_path: Path) -> None:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    blocks = BLOCK.findall((ROOT / "docs" / page).read_text("utf-8"))
    assert blocks
    for language, text in blocks:
        command = ["bash", "-euo", "pipefail", "-c", text] if language == "sh" else [sys.executable, "-c", text]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
