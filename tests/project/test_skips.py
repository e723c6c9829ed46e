"""Every test that a machine may have to skip says so with a mark of `tests/skips.py`."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
OWN_SKIP = re.compile(r"pytest\.(skip|xfail|importorskip|mark\.(skip|skipif|xfail))\b")


def test_no_test_skips_itself_in_another_way() -> None:
    texts = {path.relative_to(TESTS).as_posix(): path.read_text("utf-8") for path in TESTS.rglob("*.py")}
    assert [name for name, text in texts.items() if OWN_SKIP.search(text)] == ["skips.py"]
