"""What pages share."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from paceline.reports.compare import write_comparison
from paceline.reports.layout import document, prose, table
from paceline.reports.markup import element
from paceline.reports.page import write_report
from tests.conftest import Command
from tests.reports.browser import Browser
from tests.reports.folders import DIAGNOSIS, make_half_run, make_run
from tests.skips import needs_chromium

# The number of points of each chart: corners of its lines, or single dots.
POINTS = """[...document.querySelectorAll('svg.chart')].map(svg =>
    Math.max(0, ...[...svg.querySelectorAll('polyline')].map(line => line.points.numberOfItems)))"""


def test_backquotes_become_code_and_nothing_else_does() -> None:
    assert element("p", *prose("try `--pace async` & <b>")) == "<p>try <code>--pace async</code> &amp; &lt;b&gt;</p>"
    assert element("p", *prose("an odd ` one")) == "<p>an odd ` one</p>"


def test_a_page_forbids_scripts_and_takes_any_name() -> None:
    page = document("a\udcff<b", element("p", "text"))
    assert b"default-src 'none'" in page
    assert b"<title>a?&lt;b</title>" in page


def test_cells_are_escaped() -> None:
    assert "<td>&lt;i&gt;</td>" in table(("a",), [("<i>",)])


@pytest.fixture
def pages(tmp_path: Path, command: Command) -> dict[str, Path]:
    """A page of each kind, by its name."""
    folder = tmp_path
    sync, cluster = make_run(folder / "sync", pace="sync", workers=1, nodes=("a",)), make_run(folder / "cluster")
    cluster.write_json("diagnosis.json", DIAGNOSIS | {"gains": {"network": 1.9}, "gains_if_doubled": {"network": 1.4}})
    half = make_half_run(folder / "half")
    for run in (sync, cluster, half):
        write_report(run, folder / f"{run.path.name}.html")
    write_comparison([sync, cluster, half], folder / "comparison.html")
    assert command("demo", "--rows", 3000, "--folder", folder / "demo").code == 0
    assert command("report", folder / "demo" / "run-async").code == 0
    (folder / "grid.toml").write_text(
        f'data = "{folder}/demo/clicks-3000"\nworkers = 1\nepochs = 1\npace = "sync"\n'
        "[sweep]\nbatch_size = [20, 50, 100]\n"
    )
    assert command("sweep", folder / "grid.toml", "--out", folder / "grid").code == 0
    for job in (("trace", "--size", 60, "--blocks", 3, "--seed", 1),):
        assert command(*job, "--run", folder / job[0]).code == 0
        assert command("report", folder / job[0]).code == 0
    written = {str(page.relative_to(folder)): page for page in folder.rglob("*.html")}
    assert len(written) == 8
    return written


@needs_chromium
def test_every_page_is_whole_on_a_desk_and_on_a_phone(pages: dict[str, Path], browser: Browser) -> None:
    for (name, page), width in itertools.product(pages.items(), (1200, 390)):
        browser.open(page, width=width)
        assert browser.messages == [], name
        assert browser.requests == [page.resolve().as_uri()], name
        assert all(points >= 2 for points in browser.evaluate(POINTS)), name
        assert browser.evaluate("document.documentElement.scrollWidth") == width, name
        assert len(browser.evaluate(POINTS)) > 0 or name.startswith(("half", "trace", "demo/run")), name
