"""What people and logs see while something runs."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from paceline.reports.progress_bar import meter


def test_logs_get_a_line_every_few_seconds(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with meter("train") as bar:
        for second, share in ((1, 0.1), (6, 0.25), (8, 0.5), (11, 0.6)):
            now[0] = 100.0 + second
            bar.show(share, f"{second} rows")
    assert capsys.readouterr().err.splitlines() == [
        "train: 25%, 6 rows, 25 s left",
        "train: 60%, 11 rows, 8 s left",
    ]


def test_a_log_does_not_wait_for_the_library_that_draws_bars() -> None:
    program = (
        "import sys; from paceline.reports.progress_bar import meter\n"
        "with meter('train'): sys.exit('rich' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_a_terminal_gets_a_bar() -> None:
    program = "from paceline.reports.progress_bar import meter\nwith meter('train') as bar: bar.show(1.0, '7 rows/s')"
    ours, theirs = pty.openpty()
    try:
        command = [sys.executable, "-c", program]
        subprocess.run(command, check=True, stderr=theirs, env=os.environ | {"TERM": "xterm", "COLUMNS": "120"})
        shown = os.read(ours, 65536).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert "train" in shown
    assert "100%" in shown
    assert "7 rows/s" in shown
