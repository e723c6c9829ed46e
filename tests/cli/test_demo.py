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
    assert lines[3:] == [f"run: {tmp_path}/demo/run-{pace}" for pace in ("sync", "async")] + [f"comparison: {page}"]
    assert "run-sync and run-async" in page.read_text("utf-8")
    again = command("demo", "--rows", 3000, "--folder", tmp_path / "demo")
    assert again.out.splitlines()[-2].endswith("run-async-2")
