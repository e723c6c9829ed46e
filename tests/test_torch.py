"""PyTorch's threads do not spin for long, unless the user says so."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PRINT = "import os, paceline.torch; print(os.environ.get('GOMP_SPINCOUNT'))"


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
def test_threads_spin_briefly_unless_told_otherwise(given: dict[str, str], expected: str) -> None:
    kept = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", PRINT], env=kept | given, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected
