"""Runs side by side: what differs, what is best, in the terminal and on the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.reports import terminal
from paceline.reports.compare import PageParts, compare, write_comparison
from paceline.run_folder import RunFolder
from tests.conftest import Command
from tests.reports.browser import Browser
from tests.reports.folders import DIAGNOSIS, make_half_run, make_run
from tests.skips import needs_chromium


def two_runs(folder: Path) -> list[RunFolder]:
    runs = [make_run(folder / "slow", pace="sync", speed=0.5), make_run(folder / "fast", rate=0.1)]
    runs[0].write_json("diagnosis.json", DIAGNOSIS)
    return runs


def test_only_what_differs_is_told_and_the_best_is_marked(tmp_path: Path) -> None:
    comparison = compare(two_runs(tmp_path))
    assert comparison.names == ["fast", "slow"]
    assert comparison.sentence.startswith("`fast` has the lowest test loss, ")
    assert [row.name for row in comparison.settings] == ["pace", "optimizer.learning_rate"]
    rows = {row.name: row for row in comparison.results}
    assert rows["rows/s"].texts == ["400,000", "200,000"]
    assert rows["rows/s"].best == {0}
    assert rows["test AUC"].best == {0}
    assert rows["test loss"].best == {0}
    assert rows["seconds"].best == set()
    assert rows["rows"].best == set()
    assert rows["bottleneck"].texts == ["–", "network"]


def test_a_run_that_is_not_done_is_never_best(tmp_path: Path) -> None:
    failed = make_run(tmp_path / "failed", speed=9.0, status="failed")
    runs = [*two_runs(tmp_path), failed, make_half_run(tmp_path / "half")]
    rows = {row.name: row for row in compare(runs).results}
    assert rows["rows/s"].best == {0}
    assert rows["rows/s"].texts[3] == "–"


def test_the_terminal_shows_it(tmp_path: Path, command: Command) -> None:
    slow, fast = two_runs(tmp_path)
    outcome = command("compare", slow.path, fast.path, "--out", tmp_path / "c.html")
    assert outcome.code == 0
    head, best, second, star, *_ = outcome.out.splitlines()
    assert head.split()[:4] == ["run", "test", "loss", "pace"]
    assert best.split()[0] == "fast"
    assert "400,000 *" in best
    assert second.split()[0] == "slow"
    assert star == "* the best of its column"
    assert outcome.out.splitlines()[-2].startswith("fast has the lowest test loss, ")
    assert outcome.out.splitlines()[-1] == f"comparison: {tmp_path}/c.html"
    assert (tmp_path / "c.html").exists()


def test_runs_of_different_jobs_are_refused(run: RunFolder, tmp_path: Path, command: Command) -> None:
    (tmp_path / "trace").mkdir()
    (tmp_path / "trace" / "config.toml").write_text('job = "trace"\nsize = 10\nblocks = 2\n')
    outcome = command("compare", run.path, tmp_path / "trace")
    assert outcome.code == 2
    assert f"`{run.path}` is a run of `train` and `{tmp_path}/trace` is a run of `trace`" in outcome.err


def test_names_are_not_markup(tmp_path: Path, command: Command) -> None:
    runs = [make_run(tmp_path / name, telemetry=False) for name in ("[red]a[", "<b>b")]
    assert "[red]a[" in command("compare", *(run.path for run in runs)).out


def test_fewer_than_two_runs(run: RunFolder, command: Command) -> None:
    for arguments in ([], [run.path]):
        outcome = command("compare", *arguments)
        assert outcome.code == 2
        assert outcome.err.splitlines() == [
            f"error: compare takes at least two runs, not {len(arguments)}", "hint: paceline compare RUN RUN…",
        ]  # fmt: skip


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / folder / "run", telemetry=False) for folder in "ab"]
    assert compare(runs).names == [f"{tmp_path}/a/run", f"{tmp_path}/b/run"]
    assert len(set(compare([runs[0], runs[0]]).names)) == 2


@needs_chromium
def test_curves_lie_over_each_other(tmp_path: Path, browser: Browser, hostile_run: RunFolder) -> None:
    page = tmp_path / "c.html"
    write_comparison(compare([*two_runs(tmp_path), hostile_run, make_half_run(tmp_path / "half")]), page)
    for width in (1200, 390):
        browser.open(page, width=width)
        assert browser.messages == []
        assert browser.requests == [page.resolve().as_uri()]
        assert browser.evaluate("document.scripts.length + document.images.length") == 0
        assert browser.evaluate("document.documentElement.scrollWidth") == width
        each = "[...document.querySelectorAll('svg.chart')].map(s => s.querySelectorAll('polyline').length)"
        assert browser.evaluate(each) == [3] * 8
        assert browser.evaluate("[...document.querySelectorAll('tbody th')][0].textContent") == "fast"


@needs_chromium
@pytest.mark.parametrize("width", [1200, 390])
def test_a_notebook_shows_the_whole_page(tmp_path: Path, browser: Browser, width: int) -> None:
    """Twice, beside something of somebody else: each as high as its content, with a choice of its own."""
    comparison = compare(two_runs(tmp_path), parts=PageParts(lead="Which pace?"))
    write_comparison(comparison, tmp_path / "c.html")
    cells = "".join(f"<div class='cell'>{comparison._repr_html_()}</div>" for _ in range(2))
    outer = tmp_path / "notebook.html"
    outer.write_text(f"<!DOCTYPE html><meta charset=utf-8><h1 id=own>mine</h1>{cells}", "utf-8")
    browser.open(tmp_path / "c.html", width=width)
    told = browser.evaluate("document.querySelector('main').innerText")
    browser.open(outer, width=width)
    assert browser.messages == []
    assert browser.requests == [outer.as_uri()]
    assert browser.evaluate("getComputedStyle(document.getElementById('own')).fontSize") == "32px"
    cells = "[...document.querySelectorAll('.cell main')]"
    assert browser.evaluate(f"{cells}.map(m => m.innerText)") == [told, told]
    assert browser.evaluate(f"{cells}.every(m => m.scrollHeight <= m.clientHeight + 1)")
    browser.evaluate("document.querySelector('.to-seconds').click()")
    shown = f"{cells}.map(m => [...m.querySelectorAll('svg.chart')].find(s => s.checkVisibility()).ariaLabel)"
    assert browser.evaluate(shown) == ["Training loss, by s", "Training loss, by rows"]


def test_nothing_was_evaluated(tmp_path: Path) -> None:
    write_comparison(compare([make_half_run(tmp_path / name) for name in "ab"]), tmp_path / "c.html")
    text = (tmp_path / "c.html").read_text("utf-8")
    assert "No run has been evaluated yet" in text
    assert "the runs have the same configuration" in text


def test_a_dozen_runs_fit_a_terminal(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"20260101-1200{number:02}-linear-sync-with-a-long-name" for number in range(12)]
    runs = [make_run(tmp_path / name, speed=1 + place, rate=0.01 * (1 + place), telemetry=False)
            for place, name in enumerate(names)]  # fmt: skip
    for width in (80, 120):
        monkeypatch.setattr(terminal, "WIDTH", width)
        lines = command("compare", *(run.path for run in runs)).out.splitlines()
        table = lines[: next(place for place, line in enumerate(lines) if line.startswith("* the best"))]
        assert max(map(len, table)) <= width
        assert "optimizer.learning_rate" in table[0]
        assert "".join(table).count("linear-sync") == 12 or width == 80
