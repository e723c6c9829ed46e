"""What people and logs see while something runs."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import types

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


class Notebook(types.ModuleType):
    """What of IPython a notebook's kernel has: a shell with a kernel, and a display that can be updated."""

    kernel = object()
    HTML = str

    def __init__(self) -> None:
        super().__init__("IPython")
        self.shown: list[str] = []

    def get_ipython(self) -> Notebook:
        return self

    def display(self, page: str, display_id: bool) -> Notebook:
        assert display_id
        self.update(page)
        return self

    def update(self, page: str) -> None:
        self.shown.append(page)


def test_a_notebook_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = Notebook()
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", notebook)
    with meter("train <1>") as bar:
        bar.show(0.5, "7 rows/s")
        bar.show(1.0, "8 rows/s")
    assert notebook.shown == [
        '<progress value="0.000" max="1"></progress> <span>train &lt;1&gt;: 0%</span>',
        '<progress value="0.500" max="1"></progress> <span>train &lt;1&gt;: 50%, 7 rows/s</span>',
        '<progress value="1.000" max="1"></progress> <span>train &lt;1&gt;: 100%, 8 rows/s</span>',
    ]
