"""Every snippet of these pages runs, one after the other, in an empty folder.

A snippet that needs what tests do not have stands behind `<!-- not run: why -->`, and must be free of syntax errors.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.test_docs import BLOCK, ROOT

PAGES = ("every-day.md", "export.md", "pandas.md", "scikit-learn.md", "scoring.md")
NOT_RUN = re.compile(r"^<!-- not run: .+ -->\n" + BLOCK.pattern.removeprefix("^"), BLOCK.flags)

# Runs the blocks that it is given as JSON: those of Python in one namespace, as in a notebook.
RUNNER = """
import json, subprocess, sys
namespace = {"__name__": "__main__"}
for language, text in json.load(sys.stdin):
    print(text, flush=True)
    if language == "sh":
        subprocess.run(["bash", "-euo", "pipefail", "-c", text], check=True, stdin=subprocess.DEVNULL)
    else:
        exec(compile(text, "snippet", "exec"), namespace)
"""


@pytest.mark.parametrize("page", PAGES)
def test_every_snippet_of_a_page_runs(page: str, tmp_path: Path) -> None:
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "MLFLOW_DISABLE_TELEMETRY": "true",
    }  # fmt: skip
    text = (ROOT / "docs" / page).read_text("utf-8")
    for language, snippet in NOT_RUN.findall(text):
        if language == "python":
            compile(snippet, page, "exec")
        else:
            subprocess.run(["bash", "-n", "-c", snippet], check=True)
    blocks = BLOCK.findall(NOT_RUN.sub("", text))
    assert blocks
    done = subprocess.run(
        [sys.executable, "-c", RUNNER], input=json.dumps(blocks), cwd=tmp_path, env=environment, capture_output=True,
        text=True, timeout=150,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
