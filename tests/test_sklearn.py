"""scikit-learn is imported only by those who want it."""

from __future__ import annotations

import subprocess
import sys


def output_of(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    return f"{done.stdout}{done.stderr}".strip()


def test_paceline_does_not_import_it() -> None:
    assert output_of("import sys, paceline.api; print('sklearn' in sys.modules)") == "False"


def test_without_it_one_line_says_what_to_install() -> None:
    code = "import sys; sys.modules['sklearn'] = None; import paceline.sklearn"
    assert output_of(code).splitlines()[-1] == (
        "ImportError: paceline.sklearn needs scikit-learn: pip install 'paceline[sklearn]'"
    )
