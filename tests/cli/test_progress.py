"""What commands show of a run."""

from __future__ import annotations

import subprocess
import sys
import time


def test_start_up_counts_from_the_moment_when_the_process_began() -> None:
    before = time.time()
    code = "import time; time.sleep(0.2); from paceline.cli.progress import process_start; print(repr(process_start()))"
    began = float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
    # The system tells it in hundredths of a second.
    assert before - 0.02 <= began <= time.time() - 0.2
