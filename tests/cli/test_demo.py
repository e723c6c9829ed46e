"""`demo` as users meet it."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import Command


def test_demo(command: Command, tmp_path: Path) -> None:
    outcome = command("demo", "--rows", 3000, "--folder", tmp_path / "demo")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    titles = "run pace workers batch rows/s seconds test loss baseline error AUC"
    assert lines[0].split() == titles.split()
    assert [line.split()[1] for line in lines[1:3]] == ["sync", "async"]
    page = tmp_path / "demo" / "comparison.html"
    assert " has the lowest test loss, " in lines[3]
    runs = [f"run: {tmp_path}/demo/run-{pace}" for pace in ("sync", "async")]
    assert lines[lines.index(runs[0]) :][:3] == [*runs, "next:"]
    assert lines[-1] == f"comparison: {page}"
    told = page.read_text("utf-8")
    assert "sync or async?" in told
    assert "What to try next" in told
    assert 'aria-label="Test loss, by rows"' in told
    again = command("demo", "--rows", 3000, "--folder", tmp_path / "demo")
    assert f"run: {tmp_path}/demo/run-async-2" in again.out.splitlines()
